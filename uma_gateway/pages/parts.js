// What the dashboard and the cluster's page are made of: tables and tiles that are updated in place, times in words.
import { number, say } from "./charts.js";

export const span = (value) =>
  value >= 9950 ? `${number(value / 1000)} s` : value >= 1000 ? `${number(value / 1000, 1)} s` : `${number(value)} ms`;

// A row of a table remains the same node as long as its key exists.
export class Table {
  constructor(holder, caption, columns, empty) {
    this.rows = new Map();
    this.empty = Object.assign(document.createElement("p"), { className: "empty", textContent: empty });
    this.table = document.createElement("table");
    const title = this.table.createCaption();
    title.className = "unseen";
    title.textContent = caption;
    const head = this.table.createTHead().insertRow();
    for (const [name, kind] of columns) {
      const cell = Object.assign(document.createElement("th"), {
        textContent: name,
        scope: "col",
        className: kind ?? "",
      });
      head.append(cell);
    }
    this.columns = columns;
    this.body = this.table.createTBody();
    holder.append(this.table, this.empty);
    this.update([]);
  }

  // `rows`: [key, cells]; a cell is a text, a number from 0 to 1 (a bar), {text, share}, or {button, press}.
  update(rows) {
    this.table.hidden = rows.length === 0;
    this.empty.hidden = rows.length !== 0;
    const present = new Set(rows.map(([key]) => key));
    for (const [key, row] of this.rows) {
      if (!present.has(key)) {
        row.remove();
        this.rows.delete(key);
      }
    }
    rows.forEach(([key, cells], index) => {
      let row = this.rows.get(key);
      if (!row) {
        row = document.createElement("tr");
        cells.forEach((cell, i) => row.append(this._make(cell, i)));
        this.rows.set(key, row);
      }
      if (this.body.rows[index] !== row) this.body.insertBefore(row, this.body.rows[index] ?? null);
      cells.forEach((cell, i) => this._fill(row.cells[i], cell));
    });
  }

  _make(cell, index) {
    const node = document.createElement(index === 0 ? "th" : "td");
    if (index === 0) node.scope = "row";
    node.className = this.columns[index][1] ?? "";
    if (cell?.button) {
      const button = Object.assign(document.createElement("button"), {
        type: "button",
        textContent: cell.button,
        className: "small",
      });
      button.setAttribute("aria-label", cell.label);
      button.addEventListener("click", cell.press);
      node.append(button);
    } else if (cell?.share !== undefined) {
      const words = document.createElement("span");
      const bar = document.createElement("i");
      bar.className = "meter";
      bar.append(document.createElement("b"));
      node.append(words, bar);
    }
    return node;
  }

  _fill(node, cell) {
    if (cell?.button) return;
    if (cell?.share === undefined) return say(node, cell);
    say(node.firstChild, cell.text);
    const width = `${Math.max(0, Math.min(100, 100 * cell.share)).toFixed(1)}%`;
    const bar = node.lastChild.firstChild;
    if (bar.style.width !== width) bar.style.width = width;
  }
}

// `shown`: [name, value, unit, more, kind]
export function drawTiles(holder, shown) {
  shown.forEach(([name, value, unit, more, kind = ""], i) => {
    let tile = holder.children[i];
    if (!tile) {
      tile = Object.assign(document.createElement("div"), { className: "tile" });
      const value = document.createElement("dd");
      value.append(document.createElement("b"), " ", document.createElement("small"));
      tile.append(
        document.createElement("dt"),
        value,
        Object.assign(document.createElement("dd"), { className: "more" }),
      );
      holder.append(tile);
    }
    say(tile.children[0], name);
    say(tile.children[1].children[0], value);
    say(tile.children[1].children[1], unit);
    say(tile.children[2], more);
    tile.className = `tile ${kind}`;
  });
}
