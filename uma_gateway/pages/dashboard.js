// The daemon live: an overview arrives twice a second, and the last two minutes are drawn.
import { LineChart, Timeline, number, say } from "./charts.js";
import { ask, element, watch } from "./common.js";
import { Table, drawTiles, span } from "./parts.js";

const SECONDS = 120; // history that is kept
const SPANS = [30, 60, SECONDS]; // lengths of the time axis: the longest for which there is enough history
const RETRY_MS = 2000;
const SURE_MS = 4000; // a second press within this time confirms the drain
const NOTES = 6;
const MiB = 1 << 20;

const rates = []; // [time, tokens generated and read per second]
const gaps = []; // [time, p50, p95, alone] between the tokens of interactive streams, in ms
const requests = new Map(); // key -> the request's bar in the timeline
const notes = new Map(); // note without its figures -> the note, and when it was last seen
const looks = []; // the last few overviews
let before = null; // the latest overview
let isPaused = false;
let seenAt = 0; // by this browser's clock; all other times are the gateway's
let startedAt = 0;
let lastTick = null; // as JSON

const charts = {
  streams: new Timeline(element("streams")),
  rate: new LineChart(element("rate"), ["generated"]),
  read: new LineChart(element("read"), ["read"]),
  gaps: new LineChart(element("gaps"), ["median", "p95", "limit"]),
};

// ---- words

const ms = (value, digits = 1) => (value === undefined || value === null ? "–" : `${number(value, digits)} ms`);
const size = (bytes) =>
  bytes >= 1024 * MiB ? `${number(bytes / MiB / 1024, 1)} GiB` : `${number(bytes / MiB, bytes < 10 * MiB ? 1 : 0)} MiB`;
const short = (id) => (id.length > 18 ? `${id.slice(0, 14)}…` : id);
const who = (r) => r.account || (r.uid === undefined ? "" : `uid ${r.uid}, pid ${r.pid}`);
const keyOf = (r) => `${r.conn}:${r.request_id}:${r.index}`;
const sum = (value) =>
  value && typeof value === "object" ? Object.values(value).reduce((all, item) => all + item, 0) : (value ?? 0);
const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;

const tables = {
  waits: new Table(
    element("waits"),
    "Who waits for whom",
    [["Request"], ["Waits for"], ["Because", "wrap"], ["About", "n"]],
    "Nobody waits.",
  ),
  cache: new Table(
    element("cache"),
    "Prefix cache by tier",
    [["Tier"], ["Held"], ["Hits", "n"], ["Tokens saved", "n"], ["Evicted", "n"], ["Restore, p50", "n"]],
    "The prefix cache is off.",
  ),
  shares: new Table(
    element("shares"),
    "Shares of compute time",
    [["Key or client"], ["Answering", "n"], ["Waiting", "n"], ["Share"]],
    "Nobody has a request.",
  ),
  notes: new Table(
    element("notes"),
    "Latest decisions",
    [["When"], ["What", "wrap"]],
    "None yet.",
  ),
  requests: new Table(
    element("requests"),
    "Requests in flight",
    [
      ["Request"],
      ["Key or client"],
      ["Class"],
      ["Phase"],
      ["Prompt read"],
      ["Cached", "n"],
      ["Answered"],
      ["First token", "n"],
      ["Age", "n"],
      [""],
    ],
    "No request is in flight.",
  ),
};

// ---- parts

function tiles(now) {
  const { latency = {}, lanes = {} } = now;
  const [, generated = 0, read = 0] = rates.at(-1) ?? [];
  const { decode = 0, prefill = 0, parked = 0 } = now.sessions ?? {};
  const queued = Object.values(lanes).reduce((all, lane) => all + lane.queued, 0);
  const oldest = Math.max(0, ...Object.values(lanes).map((lane) => lane.oldest_wait_ms));
  const kept = latency.within_limit;
  const shown = [
    ["Generated", number(generated), "tokens/s", `${number(read)} prompt tokens/s`],
    [
      "In work",
      number(decode + prefill),
      "",
      parked
        ? `of ${number(now.engine?.n_seq_max)}; ${number(parked)} parked`
        : `of ${plural(now.engine?.n_seq_max, "sequence")}`,
    ],
    ["Waiting", number(queued), "", queued ? `the oldest for ${span(oldest)}` : "nobody", queued ? "warn" : ""],
    [
      "First token",
      latency.ttft_ms ? span(latency.ttft_ms.p50) : "–",
      "",
      latency.ttft_ms ? `p95 ${span(latency.ttft_ms.p95)}` : "none yet",
    ],
    [
      "Between tokens",
      latency.itl_ms ? number(latency.itl_ms.p95, 1) : "–",
      latency.itl_ms ? "ms p95" : "",
      `alone ${ms(latency.solo_itl_ms)}`,
    ],
    [
      "Pace kept",
      kept === undefined ? "–" : `${number(100 * kept, 1)}`,
      kept === undefined ? "" : "% of gaps",
      kept === undefined ? "too few gaps to judge" : "95 % are promised",
      { met: "good", missed: "bad" }[latency.slo_verdict] ?? "",
    ],
  ];
  drawTiles(element("tiles"), shown);
}

function remember(now) {
  for (const r of now.requests ?? []) {
    const start = now.at - r.age_ms;
    const known = requests.get(keyOf(r)) ?? { key: keyOf(r), start };
    known.start = Math.min(known.start, start); // the earliest estimate is the most accurate
    known.end = now.at;
    known.isLive = true;
    known.admitted = r.phase === "queued" ? null : known.start + r.queue_ms;
    known.first = r.ttft_ms === null || r.ttft_ms === undefined ? null : known.start + r.ttft_ms;
    known.isBackground = r.lane === "background";
    known.label = r.account && r.account !== "http" ? `${r.account}: ${short(r.request_id)}` : short(r.request_id);
    known.title = `${r.request_id}, ${who(r)}, ${r.lane}: ${r.phase}, ${r.completion_tokens} of ${r.max_tokens} tokens`;
    requests.set(known.key, known);
  }
  const present = new Set((now.requests ?? []).map(keyOf));
  for (const [key, known] of requests) {
    if (!present.has(key)) known.isLive = false;
    if (!known.isLive && known.end < now.at - SECONDS * 1000) requests.delete(key);
  }
  if (now.metrics) looks.push(now);
  if (looks.length > 3) looks.shift(); // average over a second, because single ticks would be spikes
  if (looks.some((look) => look.pid !== now.pid)) looks.splice(0, looks.length - 1); // the daemon was restarted
  if (looks.length > 1) {
    const last = looks[0];
    const seconds = (now.at - last.at) / 1000 || 1;
    const rate = (name) => Math.max(0, (sum(now.metrics[name]) - sum(last.metrics[name])) / seconds);
    rates.push([now.at, rate("tokens_generated_total"), rate("prefill_tokens_total")]);
  }
  if (now.latency)
    gaps.push([
      now.at,
      now.latency.itl_ms?.p50 ?? null,
      now.latency.itl_ms?.p95 ?? null,
      now.latency.solo_itl_ms || null,
    ]);
  for (const list of [rates, gaps]) while (list.length && list[0][0] < now.at - (SECONDS + 2) * 1000) list.shift();
  // an idle daemon reports its last tick again and again: its notes are not new
  const tick = JSON.stringify(now.tick);
  if (lastTick !== null && tick !== lastTick)
    for (const words of now.tick?.notes ?? [])
      notes.set(words.replace(/[\d.]+/g, "#"), { words: words.replaceAll("_", " "), at: now.at });
  lastTick = tick;
}

function drawCharts(now) {
  const live = now.requests?.length ?? 0;
  const seconds = SPANS.find((span) => now.at - startedAt <= span * 1000) ?? SECONDS;
  charts.streams.draw(
    [...requests.values()],
    now.at,
    seconds,
    `${plural(live, "request")} in flight, ${requests.size} in the last two minutes. ` +
      "The table of requests has the details.",
  );
  element("streams-none").hidden = requests.size > 0;
  const [, generated = 0, read = 0] = rates.at(-1) ?? [];
  charts.rate.draw(
    rates.map(([at, value]) => [at, value]),
    now.at,
    seconds,
    `Generated tokens a second over ${seconds} s, now ${number(generated)}`,
  );
  charts.read.draw(
    rates.map(([at, , value]) => [at, value]),
    now.at,
    seconds,
    `Prompt tokens read a second over ${seconds} s, now ${number(read)}`,
  );
  const { itl_ms: itl, solo_itl_ms: alone } = now.latency ?? {};
  charts.gaps.draw(
    gaps,
    now.at,
    seconds,
    `Gaps between tokens in the last minute: median ${ms(itl?.p50)}, p95 ${ms(itl?.p95)}; a stream alone ${ms(alone)}`,
  );
}

function drawWaits(now) {
  const all = now.requests ?? [];
  const guard = now.tick?.guard_detail;
  const chats = all.filter((r) => r.lane === "interactive" && r.phase === "decode").map((r) => short(r.request_id));
  const named = chats.length > 3 ? `${chats.slice(0, 3).join(", ")} and ${chats.length - 3} more` : chats.join(", ");
  const rows = [];
  for (const r of [...all].sort((a, b) => (a.queue_position ?? -1) - (b.queue_position ?? -1))) {
    const line = (whom, why, about = "") => rows.push([keyOf(r), [short(r.request_id), whom, why, about]]);
    if (r.is_held) line("its own client", "it reads too slowly");
    else if (r.phase === "queued" && r.queue_position !== undefined)
      line(
        r.waits_for ? short(r.waits_for) : "its turn",
        r.waits_for
          ? `place ${r.queue_position + 1} in the queue; that sequence should be free first`
          : "it is next",
        r.waits_for ? span(r.wait_ms) : "",
      );
    else if (r.phase === "queued") line("its prompt", "it is being tokenised");
    else if (r.phase === "parked")
      line(
        r.waits_for ? short(r.waits_for) : "room",
        "its KV cells were given to more urgent work",
        r.waits_for ? span(r.wait_ms) : "",
      );
    else if (r.phase === "prefill" && guard?.holds_prompt && chats.length)
      line(
        named,
        `their tokens come first; ${number(r.prefilled_tokens)} of ${number(r.prompt_tokens)} prompt tokens are read`,
      );
    else if (r.phase === "decode" && r.lane === "background" && guard?.holds_rows && chats.length)
      line(named, "they are interactive and leave no time between tokens");
  }
  tables.waits.update(rows);
}

function drawKv(now) {
  const { kv = {}, engine = {} } = now;
  const n = engine.n_seq_max ?? 0;
  const scale = engine.n_ctx_seq || kv.cells_total || 1;
  const held = now.cache?.resident?.sequences ?? {};
  const owners = new Map(
    (now.requests ?? []).filter((r) => typeof r.sequence === "number").map((r) => [r.sequence, r]),
  );
  const holder = element("kv");
  holder.style.setProperty("--row", `${Math.max(3, Math.min(16, Math.floor(170 / Math.max(1, n))))}px`);
  while (holder.children.length > n) holder.lastChild.remove();
  const words = [];
  for (let i = 0; i < n; i++) {
    let row = holder.children[i];
    if (!row) {
      row = Object.assign(document.createElement("div"), { className: "seq" });
      for (const name of ["used", "reserved", "cached"])
        row.append(Object.assign(document.createElement("i"), { className: `k-${name}` }));
      row.append(document.createElement("span"));
      holder.append(row);
    }
    const owner = owners.get(i);
    const used = owner ? owner.prefilled_tokens + owner.completion_tokens : 0;
    const reserved = owner ? Math.max(0, owner.prompt_tokens + owner.max_tokens - used) : 0;
    const cached = owner ? 0 : (held[i] ?? 0);
    [used, reserved, cached].forEach((cells, part) => {
      const width = `${Math.min(100, (100 * cells) / scale).toFixed(2)}%`;
      if (row.children[part].style.width !== width) row.children[part].style.width = width;
    });
    say(row.lastChild, n > 10 ? "" : owner ? short(owner.request_id) : cached ? `${number(cached)} cached` : "");
    words.push(
      `sequence ${i}: ` +
        (owner ? `${owner.request_id}, ${used} used, ${reserved} reserved` : cached ? `${cached} cached` : "free"),
    );
  }
  holder.setAttribute(
    "aria-label",
    words.length > 16 ? `${owners.size} of ${n} sequences are in use` : words.join("; ") || "no sequences",
  );
  say(
    element("kv-sums"),
    `${number(kv.cells_total)} cells: ${number(kv.used)} used, ${number(kv.reserved)} reserved, ` +
      `${number(kv.cached)} cached, ${number(kv.shared)} shared`,
  );
}

const TIERS = [
  ["resident", "Sequences"],
  ["ram", "RAM"],
  ["disk", "Disk"],
];

function drawCache(now) {
  const { metrics = {}, cache } = now;
  const hits = metrics.cache_hits_total;
  tables.cache.update(
    !hits || cache?.is_on === false
      ? []
      : TIERS.map(([tier, name]) => {
          const bytes = metrics.cache_bytes?.[tier] ?? 0;
          const budget = tier === "resident" ? now.memory?.kv : cache?.[tier]?.budget;
          const restore = metrics.cache_restore_ms?.[tier];
          const held = budget
            ? `${size(bytes)} of ${size(budget)}`
            : tier === "disk" && cache && !budget
              ? "off"
              : size(bytes);
          return [
            tier,
            [
              name,
              { text: held, share: budget ? bytes / budget : 0 },
              number(hits[tier]),
              number(metrics.cache_tokens_saved_total?.[tier]),
              number(metrics.cache_evictions_total?.[tier]),
              restore?.count ? span(restore.p50) : "–",
            ],
          ];
        }),
  );
  const [found, missed] = [sum(hits), metrics.cache_misses_total ?? 0];
  const looked = found + missed;
  say(
    element("cache-sums"),
    looked
      ? `${number((100 * found) / looked)} % of ${plural(looked, "prompt")} had a cached beginning; ` +
        `${number(sum(metrics.cache_tokens_saved_total))} prompt tokens were not computed again.`
      : "No prompt has been looked up yet.",
  );
}

function drawDrafts({ speculation = {} }) {
  const { drafted = {}, accepted = {}, saved_ms: saved = {} } = speculation;
  const words = Object.entries(drafted)
    .filter(([, count]) => count)
    .map(([source, count]) => {
      const gain = saved[source] ?? 0; // ms; negative: a loss
      const time = gain ? ` (${gain < 0 ? "lost" : "saved"} ${span(Math.abs(gain))})` : "";
      return `${source} ${number(accepted[source])} of ${number(count)}${time}`;
    });
  say(element("drafts"), words.length ? `Accepted draft tokens: ${words.join(", ")}.` : "");
}

const GUARD = {
  off: "Off: this configuration has no latency guard.",
  idle: "Idle: there is no interactive stream to protect.",
  open: "Open: all other work fits between the tokens of the interactive streams.",
  active: "Active: other work waits, so that interactive streams keep their pace.",
};

function drawGuard(now) {
  const guard = now.tick?.guard;
  const detail = now.tick?.guard_detail;
  say(
    element("guard"),
    `${GUARD[guard] ?? "–"} The last tick took ${ms(now.tick?.ms_last, 2)}` +
      (now.tick?.budget_ms ? ` of at most ${ms(now.tick.budget_ms, 2)}.` : "."),
  );
  element("guard").className = `lead ${guard === "active" ? "warn" : ""}`;
  const gap = element("gap");
  gap.hidden = element("gap-legend").hidden = !detail || guard === "idle";
  if (!gap.children.length)
    for (const name of ["k-used", "k-cached", "k-free"])
      gap.append(Object.assign(document.createElement("i"), { className: name }));
  if (detail) {
    const whole = Math.max(detail.long_ms, detail.everyday_ms, detail.round_ms) || 1;
    const room = Math.max(0, Math.min(detail.room_ms, detail.everyday_ms - detail.round_ms));
    [detail.round_ms, room, whole - detail.round_ms - room].forEach((part, i) => {
      gap.children[i].style.width = `${((100 * Math.max(0, part)) / whole).toFixed(1)}%`;
    });
    const words =
      `A decode round of the interactive streams takes ${ms(detail.round_ms, 2)}; a gap may take ` +
      `${ms(detail.everyday_ms, 2)}, a long one ${ms(detail.long_ms, 2)}. Room for other work: ` +
      `${ms(detail.room_ms, 2)}; credit for long gaps: ${number(detail.credit, 1)}.`;
    gap.setAttribute("aria-label", words);
    say(element("gap-words"), gap.hidden ? "" : words);
  } else say(element("gap-words"), "");
  const latest = [...notes].sort((a, b) => b[1].at - a[1].at).slice(0, NOTES);
  notes.clear();
  for (const [key, note] of latest) notes.set(key, note);
  const rows = [...latest].sort((a, b) => (a[0] < b[0] ? -1 : 1)); // each keeps its place
  tables.notes.update(
    rows.map(([key, { words, at }]) => [
      key,
      [now.at - at < 1000 ? "now" : `${number((now.at - at) / 1000)} s ago`, words],
    ]),
  );
}

function drawShares(now) {
  tables.shares.update(
    (now.clients ?? []).map((c) => {
      const name = c.account ?? `uid ${c.uid}, pid ${c.pid}`;
      return [name, [name, number(c.active), number(c.queued), { text: `${number(100 * c.share)} %`, share: c.share }]];
    }),
  );
}

function drawRequests(now) {
  const progress = (done, all) => ({ text: `${number(done)} of ${number(all)}`, share: all ? done / all : 0 });
  tables.requests.update(
    (now.requests ?? []).map((r) => [
      keyOf(r),
      [
        r.request_id,
        who(r),
        r.lane,
        r.phase + (r.is_held ? ", slow reader" : ""),
        progress(r.prefilled_tokens, r.prompt_tokens),
        number(r.cached_tokens),
        progress(r.completion_tokens, r.max_tokens),
        r.ttft_ms === null ? "–" : span(r.ttft_ms),
        span(r.age_ms),
        {
          button: "Cancel",
          label: `Cancel ${r.request_id}`,
          press: () => act("/uma/cancel", { request_id: r.request_id, conn: r.conn }, `Cancelled ${r.request_id}.`),
        },
      ],
    ]),
  );
}

function drawState(now) {
  const left = now.drain?.remaining;
  const words = {
    draining: left ? `draining, ${plural(left, "request")} left` : "drained",
    starting: now.load_share ? `loading, ${number(100 * now.load_share)} %` : "loading",
  };
  const state = element("state");
  say(state, words[now.state] ?? (now.reason ? `${now.state}: ${now.reason}` : now.state));
  const grade = now.state === "ready" ? "good" : ["draining", "starting"].includes(now.state) ? "warn" : "bad";
  state.className = `pill ${grade}`;
  element("board").classList.toggle("stale", now.state === "unreachable");
  element("cluster").hidden = !now.units;
  const drain = element("drain");
  drain.disabled = now.state !== "ready" && now.state !== "draining";
  if (!drain.dataset.armed) say(drain, now.state === "draining" ? "Undrain" : "Drain");
  if (!now.model) return;
  const { engine = {} } = now;
  say(
    element("model"),
    [
      now.model.name,
      now.backend,
      engine.engine,
      plural(engine.threads, "thread"),
      `${engine.kv_type} KV`,
      `${number(engine.n_ctx_seq)} tokens of context`,
      `up ${uptime(now.uptime_s)}`,
    ].join(" · "),
  );
}

const uptime = (s) =>
  s < 120
    ? `${number(s)} s`
    : s < 7200
      ? `${number(s / 60)} min`
      : s < 172800
        ? `${number(s / 3600)} h`
        : `${number(s / 86400)} days`;

function draw(now) {
  drawState(now);
  if (now.state === "unreachable") return;
  tiles(now);
  drawCharts(now);
  drawDrafts(now);
  drawWaits(now);
  drawKv(now);
  drawCache(now);
  drawGuard(now);
  drawShares(now);
  drawRequests(now);
}

// ---- actions

async function act(path, body, words) {
  const told = element("told");
  try {
    await ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
    say(told, words);
    told.className = "quiet";
  } catch (error) {
    say(told, error.message);
    told.className = "bad";
  }
}

element("pause").addEventListener("click", ({ currentTarget }) => {
  isPaused = !isPaused;
  currentTarget.setAttribute("aria-pressed", String(isPaused));
  say(currentTarget, isPaused ? "Resume" : "Pause");
  if (!isPaused && before) draw(before);
});

element("drain").addEventListener("click", ({ currentTarget: button }) => {
  const isDraining = before?.state === "draining";
  if (isDraining) return act("/uma/undrain", {}, "The daemon takes requests again.");
  if (!button.dataset.armed) {
    button.dataset.armed = "yes";
    say(button, "Really drain?");
    setTimeout(() => delete button.dataset.armed, SURE_MS);
    return undefined;
  }
  delete button.dataset.armed;
  return act("/uma/drain", {}, "The daemon takes no new requests and finishes what runs.");
});

// ---- the stream

async function run() {
  for (;;) {
    try {
      for await (const told of watch("/uma/events")) {
        // events that arrived while the tab slept are handled at once, so the time is that of the looks, not of now
        const now = { ...told, at: told.at_ms };
        seenAt = Date.now();
        startedAt ||= now.at;
        if (now.state !== "unreachable") remember(now);
        before = now;
        if (!isPaused) draw(now);
      }
      throw new Error("the gateway ended the stream");
    } catch (error) {
      if (error.lacksKey) {
        drawState({ state: "no key", reason: "reload the page to give one" });
        return;
      }
      drawState({
        state: "unreachable",
        reason: seenAt ? `${error.message}; last seen ${number((Date.now() - seenAt) / 1000)} s ago` : error.message,
      });
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

run();
