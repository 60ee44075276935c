// The cluster live: what the router knows about every daemon arrives twice a second.
import { number, say } from "./charts.js";
import { element, watch } from "./common.js";
import { Table, drawTiles, span } from "./parts.js";

const RETRY_MS = 2000;
const WORDS = {
  routed: "sent to a daemon",
  rerouted: "sent elsewhere after a refusal",
  replayed: "restarted after a loss",
  resumed: "continued after a loss",
  lost: "ended by a loss",
  refused: "refused",
};

const tables = {
  units: new Table(
    element("units"),
    "Daemons",
    [
      ["Node"],
      ["Model"],
      ["State"],
      ["Requests", "n"],
      ["Sequences", "n"],
      ["Wait, interactive", "n"],
      ["Wait, background", "n"],
      ["Cached pages", "n"],
      ["Last report", "n"],
    ],
    "No daemon is known.",
  ),
  counts: new Table(element("counts"), "Outcomes of requests", [["Outcome"], ["Requests", "n"]], ""),
};

const time = (value) => (value === undefined || value === null ? "–" : span(value));

function draw(now) {
  const { units, counts, waiting } = now;
  const open = units.filter((unit) => unit.is_open);
  const share = counts.prompt_tokens ? counts.cached_tokens / counts.prompt_tokens : 0;
  const sent = units.reduce((all, unit) => all + (unit.requests ?? 0), 0);
  drawTiles(element("tiles"), [
    ["Daemons", number(open.length), `of ${units.length}`, "accept requests", open.length < units.length ? "warn" : ""],
    ["Nodes", number(new Set(units.map((unit) => unit.node)).size), "", "with daemons"],
    ["In flight", number(now.in_flight), "requests", "at this gateway"],
    ["With daemons", number(sent), "requests", "sent and not ended"],
    ["Waiting", number(waiting), "", waiting ? "for a daemon" : "nobody", waiting ? "warn" : ""],
    ["Cached", number(100 * share), "%", "of the prompts' tokens"],
  ]);
  tables.units.update(
    units.map((unit) => [
      unit.unit,
      [
        unit.node.slice(0, 12),
        unit.model,
        unit.is_open ? "open" : "closed",
        number(unit.requests),
        number(unit.sequences),
        time(unit.load_ms?.interactive),
        time(unit.load_ms?.background),
        number(unit.pages),
        unit.age_ms === undefined || unit.age_ms === null ? "–" : `${span(unit.age_ms)} ago`,
      ],
    ]),
  );
  tables.counts.update(Object.entries(WORDS).map(([name, words]) => [name, [words, number(counts[name])]]));
  tell(open.length ? "ready" : "no daemon accepts requests", open.length ? "good" : "bad");
  element("board").classList.remove("stale");
}

function tell(words, grade) {
  say(element("state"), words);
  element("state").className = `pill ${grade}`;
}

async function follow() {
  for (;;) {
    let words = "the gateway ended the stream";
    try {
      for await (const now of watch("/uma/cluster/events")) draw(now);
    } catch (error) {
      if (error.lacksKey) return tell("no key: reload the page to give one", "bad");
      words = error.message;
    }
    tell(`unreachable: ${words}`, "bad");
    element("board").classList.add("stale");
    await new Promise((done) => setTimeout(done, RETRY_MS));
  }
}

follow();
