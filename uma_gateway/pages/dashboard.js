// The daemon live: once a second an overview arrives; what is drawn is the last two minutes of them.
import { ask, element, events } from "./common.js";

const SECONDS = 120;
const RETRY_MS = 2000;
const history = []; // overviews, oldest first
const COLORS = { queued: "--quiet", parked: "--quiet", prefill: "--warm", decode: "--accent" };

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const number = (value, digits = 0) => (value === undefined || value === null ? "–" : Number(value).toLocaleString(undefined, { maximumFractionDigits: digits }));

function table(head, rows, empty) {
  if (!rows.length) return Object.assign(document.createElement("p"), { className: "quiet", textContent: empty });
  const made = document.createElement("table");
  const line = (cells, kind) => {
    const row = document.createElement("tr");
    for (const cell of cells) row.append(Object.assign(document.createElement(kind), { textContent: cell }));
    return row;
  };
  const top = document.createElement("thead");
  top.append(line(head, "th"));
  const body = document.createElement("tbody");
  body.append(...rows.map((row) => line(row, "td")));
  made.append(top, body);
  return made;
}

function canvas(id) {
  const node = element(id);
  const scale = window.devicePixelRatio || 1;
  node.width = node.clientWidth * scale;
  node.height = node.clientHeight * scale;
  const pen = node.getContext("2d");
  pen.scale(scale, scale);
  return [pen, node.clientWidth, node.clientHeight];
}

function total(value) {
  if (value && typeof value === "object") return Object.values(value).reduce((sum, item) => sum + item, 0);
  return value ?? 0;
}

function rates() {
  const out = [];
  for (let i = 1; i < history.length; i++) {
    const [before, now] = [history[i - 1], history[i]];
    const seconds = (now.at - before.at) / 1000 || 1;
    const rate = (name) => Math.max(0, (total(now.totals?.[name]) - total(before.totals?.[name])) / seconds);
    out.push([rate("tokens_generated_total"), rate("prefill_tokens_total")]);
  }
  return out;
}

function drawTiles(now) {
  const latency = now.latency ?? {};
  const last = rates().at(-1) ?? [0, 0];
  const lanes = Object.values(now.lanes ?? {});
  const tiles = [
    [number(last[0]), "tokens a second"],
    [lanes.reduce((sum, lane) => sum + lane.active, 0), "requests active"],
    [lanes.reduce((sum, lane) => sum + lane.queued, 0), "waiting"],
    [`${number(latency.itl_ms?.p95, 1)} ms`, `between tokens, p95 (alone ${number(latency.solo_itl_ms, 1)})`],
    [`${number(latency.ttft_ms?.p95)} ms`, "first token, p95"],
    [latency.slo_verdict ?? "–", "promise on pace"],
  ];
  element("tiles").replaceChildren(...tiles.map(([value, name]) => {
    const tile = Object.assign(document.createElement("div"), { className: "tile" });
    tile.append(Object.assign(document.createElement("b"), { textContent: value }), Object.assign(document.createElement("span"), { textContent: name }));
    return tile;
  }));
}

function drawLines() {
  const [pen, width, height] = canvas("lines");
  const newest = history.at(-1).at;
  const rows = new Map(); // request -> row
  for (const view of history) for (const r of view.requests ?? []) rows.set(`${r.conn}:${r.request_id}`, rows.size);
  const shown = [...rows.keys()].slice(-Math.max(1, Math.floor(height / 14)));
  const at = new Map(shown.map((key, i) => [key, i]));
  const step = Math.min(18, height / Math.max(1, shown.length));
  const x = (time) => width * (1 - (newest - time) / (SECONDS * 1000));
  for (let i = 1; i < history.length; i++) {
    for (const r of history[i].requests ?? []) {
      const row = at.get(`${r.conn}:${r.request_id}`);
      if (row === undefined) continue;
      pen.fillStyle = color(COLORS[r.phase] ?? "--quiet");
      pen.globalAlpha = r.lane === "background" ? 0.55 : 1;
      pen.fillRect(x(history[i - 1].at), row * step + 2, Math.max(1, x(history[i].at) - x(history[i - 1].at) + 0.5), step - 4);
    }
  }
  pen.globalAlpha = 1;
}

function drawRate() {
  const [pen, width, height] = canvas("rate");
  const points = rates();
  const most = Math.max(1, ...points.flat());
  pen.fillStyle = color("--quiet");
  pen.font = "12px system-ui";
  pen.fillText(number(most), 2, 12);
  [["--accent", 0], ["--warm", 1]].forEach(([name, index]) => {
    pen.strokeStyle = color(name);
    pen.lineWidth = 2;
    pen.beginPath();
    points.forEach((point, i) => {
      const x = width * (1 - (points.length - 1 - i) / SECONDS);
      const y = height - 4 - (height - 20) * (point[index] / most);
      if (i === 0) pen.moveTo(x, y);
      else pen.lineTo(x, y);
    });
    pen.stroke();
  });
}

function drawKv(now) {
  const kv = now.kv ?? {};
  const all = kv.cells_total || 1;
  const parts = [["c0", "used", kv.used], ["c1", "reserved, not used", Math.max(0, kv.reserved - kv.used)], ["c2", "cached", kv.cached]];
  element("kv").replaceChildren(...parts.map(([name, , cells]) => {
    const part = Object.assign(document.createElement("i"), { className: name });
    part.style.width = `${(100 * (cells || 0)) / all}%`;
    return part;
  }));
  element("kvlegend").replaceChildren(...[...parts, ["c3", "shared", kv.shared], ["c3", "in all", kv.cells_total]].map(([name, words, cells]) => {
    const item = document.createElement("span");
    item.append(Object.assign(document.createElement("i"), { className: name }), `${words} ${number(cells)}`);
    return item;
  }));
}

function draw(now) {
  const state = element("state");
  state.textContent = now.reason ? `${now.state}: ${now.reason}` : now.state;
  state.className = now.state === "ready" ? "good" : "bad";
  if (now.state === "unreachable") return;
  element("model").textContent = `${now.model?.name ?? ""} · ${now.engine?.engine ?? ""} engine · ${now.backend ?? ""}`;
  drawTiles(now);
  drawLines();
  drawRate();
  drawKv(now);
  const clients = (now.clients ?? []).map((c) => [c.account ?? `uid ${c.uid}, pid ${c.pid}`, c.active, c.queued, `${number(100 * c.share)} %`]);
  element("shares").replaceChildren(table(["client", "active", "waiting", "share"], clients, "Nobody has a request."));
  element("guard").textContent = `Guard: ${now.tick?.guard ?? "–"}; the last tick took ${number(now.tick?.ms_last, 2)} ms.`;
  element("notes").replaceChildren(...(now.tick?.notes ?? []).map((note) => Object.assign(document.createElement("li"), { textContent: note })));
  const requests = (now.requests ?? []).map((r) => [
    r.request_id, r.account ?? "", r.lane, r.phase + (r.is_held ? ", slow reader" : ""), `${number(r.prefilled_tokens)} of ${number(r.prompt_tokens)}`,
    number(r.cached_tokens), `${number(r.completion_tokens)} of ${number(r.max_tokens)}`, `${number(r.age_ms / 1000, 1)} s`,
  ]);
  element("requests").replaceChildren(table(["request", "account", "class", "phase", "prompt read", "cached", "answered", "age"], requests, "No request is in flight."));
}

async function run() {
  for (;;) {
    try {
      for await (const { data } of events(await ask("/uma/events"))) {
        if (!data) continue;
        const now = { ...JSON.parse(data), at: Date.now() };
        history.push(now);
        while (history.length > SECONDS) history.shift();
        draw(now);
      }
    } catch (error) {
      element("state").textContent = `unreachable: ${error.message}`;
      element("state").className = "bad";
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

run();
