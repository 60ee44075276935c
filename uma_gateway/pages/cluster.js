// The cluster live: what the router knows about every daemon arrives twice a second.
import { number } from "./charts.js";
import { element, watch } from "./common.js";

const RETRY_MS = 2000;
const WORDS = {
  routed: "sent to a daemon",
  rerouted: "sent elsewhere after a refusal",
  replayed: "restarted after a loss",
  resumed: "continued after a loss",
  lost: "ended by a loss",
  refused: "refused",
};

function table(head, rows) {
  const made = document.createElement("table");
  for (const [kind, cells] of [["th", head], ...rows.map((row) => ["td", row])]) {
    const line = document.createElement("tr");
    line.append(...cells.map((cell) => Object.assign(document.createElement(kind), { textContent: cell })));
    made.append(line);
  }
  return made;
}

function draw(now) {
  const units = now.units,
    open = units.filter((unit) => unit.is_open);
  const share = now.counts.prompt_tokens ? (100 * now.counts.cached_tokens) / now.counts.prompt_tokens : 0;
  const tiles = [
    [`${open.length} of ${units.length}`, "daemons accept requests"],
    [new Set(units.map((unit) => unit.node)).size, "nodes"],
    [units.reduce((sum, unit) => sum + (unit.requests ?? 0), 0), "requests with daemons"],
    [now.waiting, "requests waiting"],
    [`${number(share)} %`, "of prompt tokens cached"],
  ];
  element("tiles").replaceChildren(
    ...tiles.map(([value, name]) => {
      const tile = document.createElement("div");
      tile.append(
        Object.assign(document.createElement("b"), { textContent: value }),
        Object.assign(document.createElement("span"), { textContent: name }),
      );
      return tile;
    }),
  );
  const rows = units.map((unit) => [
    unit.node.slice(0, 12),
    unit.model,
    unit.is_open ? "open" : "closed",
    `${number(unit.requests)} / ${number(unit.sequences)}`,
    number(unit.load_ms?.interactive),
    number(unit.load_ms?.background),
    number(unit.pages),
    number(unit.age_ms),
  ]);
  element("units").replaceChildren(
    table(
      ["node", "model", "", "requests / sequences", "wait, ms", "in the background", "pages known", "heard, ms ago"],
      rows,
    ),
  );
  element("counts").replaceChildren(
    table(Object.values(WORDS), [Object.keys(WORDS).map((name) => number(now.counts[name]))]),
  );
  element("state").textContent = open.length ? "ready" : "no daemon accepts requests";
}

async function follow() {
  for (;;) {
    try {
      for await (const now of watch("/uma/cluster/events")) draw(now);
    } catch (error) {
      element("state").textContent = error.lacksKey ? "no key: reload the page to give one" : error.message;
      if (error.lacksKey) return;
    }
    await new Promise((done) => setTimeout(done, RETRY_MS));
  }
}

follow();
