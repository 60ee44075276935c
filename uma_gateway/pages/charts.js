// Charts drawn as SVG and updated in place, so that nothing flickers. Colours come from the style sheet.
const SVG = "http://www.w3.org/2000/svg";

export const number = (value, digits = 0) =>
  value === undefined || value === null
    ? "–"
    : Number(value).toLocaleString(undefined, { maximumFractionDigits: digits });

export function shape(tag, attributes = {}, parent = null) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  parent?.append(node);
  return node;
}

const put = (node, attributes) => {
  for (const [name, value] of Object.entries(attributes)) {
    const text = typeof value === "number" ? String(Math.round(value * 10) / 10) : value;
    if (node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
};

export const say = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};

// The first of 1, 2, 5, 10, 20 … that is at least the value, so that an axis seldom changes.
export function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * power >= value) * power;
}

// A time axis under a chart, marked in seconds ago.
class TimeAxis {
  constructor(svg) {
    this.marks = [0, 1, 2, 3, 4].map((quarter) => [
      quarter,
      shape("line", { class: "grid" }, svg),
      shape("text", { class: "tick", "text-anchor": ["end", "middle", "middle", "middle", "start"][quarter] }, svg),
    ]);
  }

  place(seconds, left, right, top, bottom) {
    for (const [quarter, line, text] of this.marks) {
      const x = right - ((right - left) * quarter) / 4;
      put(line, { x1: x, x2: x, y1: top, y2: bottom });
      put(text, { x, y: bottom + 14, visibility: right - left < 420 && quarter % 2 ? "hidden" : "visible" });
      say(text, quarter ? `${(seconds * quarter) / 4} s ago` : "now");
    }
  }
}

// Lines over the last seconds, with a labelled axis. `lines`: class of each line; a line of class "limit" is a level,
// dashed.
export class LineChart {
  constructor(holder, lines) {
    this.svg = shape("svg", { class: "chart", role: "img" }, null);
    holder.append(this.svg);
    this.lines = lines;
    this.time = new TimeAxis(this.svg);
    this.levels = [0, 0.5, 1].map((part) => [
      part,
      shape("line", { class: "grid" }, this.svg),
      shape("text", { class: "tick", "text-anchor": "end" }, this.svg),
    ]);
    this.paths = lines.map((name) => [
      shape("path", { class: `area ${name}` }, this.svg),
      shape("path", { class: `line ${name}` }, this.svg),
    ]);
    this.most = 0;
  }

  // `points`: [time in ms, value of each line …], oldest first. `label` describes the chart to a screen reader.
  draw(points, now, seconds, label) {
    const [width, height] = [this.svg.clientWidth, this.svg.clientHeight];
    if (!width || !height) return;
    const [left, right, top, bottom] = [46, width - 6, 10, height - 20];
    const values = points.flatMap(([, ...rest]) => rest.filter((value) => value !== null));
    const needed = ceiling(Math.max(0, ...values));
    // Shrink the axis late, because an axis that jumps is hard to read.
    if (needed > this.most || needed < this.most / 4) this.most = needed;
    const x = (at) => right - ((right - left) * (now - at)) / (seconds * 1000);
    const y = (value) => bottom - (bottom - top) * Math.min(1, value / this.most);
    this.time.place(seconds, left, right, top, bottom);
    for (const [part, line, text] of this.levels) {
      put(line, { x1: left, x2: right, y1: y(part * this.most), y2: y(part * this.most) });
      put(text, { x: left - 5, y: y(part * this.most) + 4 });
      say(text, number(part * this.most, this.most < 10 ? 1 : 0));
    }
    const visible = points.filter(([at]) => now - at <= seconds * 1000);
    this.paths.forEach(([area, line], index) => {
      const parts = visible
        .filter((point) => point[index + 1] !== null)
        .map((point) => `${x(point[0]).toFixed(1)},${y(point[index + 1]).toFixed(1)}`);
      const path = parts.length ? `M${parts.join("L")}` : "";
      const [first, last] = [parts[0]?.split(",")[0], parts.at(-1)?.split(",")[0]];
      put(line, { d: path });
      put(area, { d: path && this.lines[index] !== "limit" ? `${path}L${last},${bottom}L${first},${bottom}Z` : "" });
    });
    put(this.svg, { viewBox: `0 0 ${width} ${height}`, "aria-label": label });
  }
}

const ROW = 22;
const GAP_MS = 1500; // least time between two requests in one row

// Requests as bars, each in the first free row, so the number of rows is the number of concurrent requests.
export class Timeline {
  constructor(holder) {
    this.svg = shape("svg", { class: "chart timeline", role: "img" }, null);
    holder.append(this.svg);
    this.time = new TimeAxis(this.svg);
    const defs = shape("defs", {}, this.svg);
    const stripes = shape(
      "pattern",
      { id: "stripes", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      defs,
    );
    shape("rect", { width: 6, height: 6, class: "reading" }, stripes);
    shape("rect", { width: 2.5, height: 6, class: "stripe" }, stripes);
    this.layer = shape("g", {}, this.svg);
    this.bars = new Map(); // key -> nodes and row
  }

  _bar(key) {
    let bar = this.bars.get(key);
    if (!bar) {
      const group = shape("g", {}, this.layer);
      bar = { group, title: shape("title", {}, group), row: -1 };
      for (const name of ["waits", "reads", "answers"]) bar[name] = shape("rect", { class: name }, group);
      bar.label = shape("text", { class: "label" }, group);
      this.bars.set(key, bar);
    }
    return bar;
  }

  // `requests`: {key, label, title, isBackground, start, admitted, first, end}, times in ms; `admitted` and `first` may
  // be null.
  draw(requests, now, seconds, label) {
    const width = this.svg.clientWidth;
    if (!width) return;
    const from = now - seconds * 1000;
    const shown = requests.filter((request) => request.end >= from);
    const present = new Set(shown.map((request) => request.key));
    for (const [key, bar] of this.bars) {
      if (!present.has(key)) {
        bar.group.remove();
        this.bars.delete(key);
      }
    }
    const busy = []; // end of each row's last bar
    for (const request of shown) {
      const { row } = this._bar(request.key);
      if (row >= 0) busy[row] = Math.max(busy[row] ?? 0, request.end);
    }
    for (const request of shown) {
      const bar = this._bar(request.key);
      if (bar.row >= 0) continue;
      let row = 0;
      while ((busy[row] ?? 0) + GAP_MS > request.start) row++;
      bar.row = row;
      busy[row] = request.end;
    }
    const n = Math.max(4, busy.length);
    const [left, right, top, bottom] = [4, width - 6, 2, 2 + n * ROW];
    const height = bottom + 20;
    this.time.place(seconds, left, right, top, bottom);
    const x = (at) => Math.max(left, right - ((right - left) * (now - at)) / (seconds * 1000));
    for (const request of shown) this._place(request, x, top);
    if (this.svg.style.height !== `${height}px`) this.svg.style.height = `${height}px`;
    put(this.svg, { viewBox: `0 0 ${width} ${height}`, "aria-label": label });
  }

  _place(request, x, top) {
    const bar = this._bar(request.key);
    const y = top + bar.row * ROW;
    const [admitted, first] = [request.admitted ?? request.end, request.first ?? request.end];
    const part = (node, start, end, inset) => {
      const [a, b] = [x(start), x(end)];
      put(node, { x: a, y: y + inset, width: Math.max(end > start ? 1.5 : 0, b - a), height: ROW - 2 * inset, rx: 2 });
    };
    part(bar.waits, request.start, Math.min(admitted, request.end), 8);
    part(bar.reads, admitted, Math.max(admitted, first), 4);
    part(bar.answers, first, Math.max(first, request.end), 2);
    const begin = x(request.start);
    const room = x(request.end) - begin;
    // its name covers the line of a long wait, which would strike it through
    const hidesLine = x(Math.min(admitted, request.end)) - begin > room / 2;
    put(bar.group, { class: `${request.isBackground ? "background" : ""} ${hidesLine ? "waiting" : ""}`.trim() });
    put(bar.label, { x: begin + 5, y: y + ROW / 2 + 4, visibility: room > 40 ? "visible" : "hidden" });
    const letters = Math.floor((room - 8) / 6.6);
    say(
      bar.label,
      request.label.length > letters ? `${request.label.slice(0, Math.max(0, letters - 1))}…` : request.label,
    );
    say(bar.title, request.title);
  }
}
