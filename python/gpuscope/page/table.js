// Tables of many rows: sorted, filtered, selected, exported. Only visible rows are in the document.

import { countText, matcher, shareText, sizeText, timeText, valueText } from "./units.js";
import { element, listOf } from "./elements.js";

const BESIDE = 6; // rows drawn above and below those in view
const MOST_COPIED = 100;
const BINS = 24;
const PYTHON = "python"; // the table of functions

const COLUMNS = [
  { key: "name", title: "name", wide: "minmax(min(14rem, 44vw), 1fr)" },
  { key: "shape", title: "durations", wide: "6.4rem", help: "how often which duration came, on a logarithmic scale" },
  { key: "count", title: "count", wide: "6.4rem", text: countText },
  { key: "share", title: "share", wide: "6rem", text: shareText, share: true, help: "of all time on the GPU, or on CPUs; of Python functions: of the recorded time, to which threads add up to more" },
  { key: "gpu", title: "GPU total", wide: "5.8rem", text: timeText },
  { key: "self_gpu", title: "GPU self", wide: "5.6rem", text: timeText },
  { key: "cpu", title: "CPU total", wide: "5.8rem", text: timeText },
  { key: "self_cpu", title: "CPU self", wide: "5.6rem", text: timeText },
  { key: "on_cpu", title: "on a CPU", wide: "5.6rem", text: timeText, help: "the part of the CPU total that a thread was not waiting" },
  { key: "p50", title: "p50", wide: "5rem", text: timeText },
  { key: "p95", title: "p95", wide: "5rem", text: timeText },
  { key: "p99", title: "p99", wide: "5rem", text: timeText },
  { key: "max", title: "max", wide: "5rem", text: timeText },
  { key: "bytes", title: "bytes", wide: "5.8rem", text: sizeText },
  { key: "flops", title: "FLOP", wide: "5.8rem", text: (value) => valueText(value, "") },
  { key: "memory", title: "memory", wide: "5.8rem", text: sizeText, help: "taken of the GPU's memory less given back, in no region inside" },
];

/** The bars of a histogram as a drawing. */
export function shapeOf(text, height = 20) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${BINS * 4} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  let way = "";
  for (let bin = 0; bin < text.length; bin += 1) {
    const high = (parseInt(text[bin], 36) / 35) * (height - 1);
    if (high > 0) way += `M${bin * 4} ${height}v-${Math.max(high, 1).toFixed(1)}h3.2v${Math.max(high, 1).toFixed(1)}z`;
  }
  path.setAttribute("d", way);
  svg.append(path);
  return svg;
}

export class Tables {
  /** Those that a table may have; it has those in which some row is not 0. */
  get everyColumn() { return COLUMNS; }
  get firstSort() { return this.family === PYTHON ? "self_cpu" : this.hasGpu ? "gpu" : "cpu"; }
  isLeftOut(key) { return this.family === "kernels" && (key === "cpu" || key === "self_cpu" || key === "self_gpu"); }

  constructor(data, tell) {
    this.rows = data.rows;
    this.own = new Set(data.rows.own);
    this.strings = data.strings;
    this.hasGpu = data.has_gpu;
    this.tell = tell;
    this.place = document.getElementById("rows");
    this.tabs = [...document.querySelectorAll("[data-family]")];
    this.chosen = -1;
    this.filterText = "";
    this.orders = new Map();
    this.names = this.rows.name.map((id) => this.strings[id]);
    this.family = this.tabs[0].dataset.family;
    this.sort = { key: this.firstSort, up: false };
    this.listen();
    this.open(this.family);
  }

  /** The place of each row in the order of names, worked out once. */
  get ranks() {
    if (!this.ranked) {
      const { names } = this, order = Uint32Array.from(names, (_, row) => row).sort((one, other) => (names[one] < names[other] ? -1 : names[one] > names[other] ? 1 : one - other));
      this.ranked = new Uint32Array(order.length);
      order.forEach((row, place) => { this.ranked[row] = place; });
    }
    return this.ranked;
  }

  /** The rows of the table in the order of a column, worked out once. */
  sorted(key) {
    const known = `${this.family} ${key}`;
    if (!this.orders.has(known)) {
      const unknown = this.everyColumn.find((column) => column.key === key)?.unknown;
      const values = key === "name" ? this.ranks : unknown === undefined ? this.rows[key] : this.rows[key].map((value) => value ?? unknown);
      this.orders.set(known, Uint32Array.from(this.kept).sort((one, other) => values[one] - values[other] || other - one));
    }
    return this.orders.get(known);
  }

  get kept() { return this.rows.family[this.family]; }

  /** Shows one of the tables. */
  open(family, sort) {
    if (!this.rows.family[family] || !this.tabs.some((tab) => tab.dataset.family === family)) return;
    const isFirst = this.sort.key === this.firstSort && !this.sort.up;
    this.family = family;
    if (isFirst) this.sort = { key: this.firstSort, up: false };
    for (const tab of this.tabs) {
      const isOn = tab.dataset.family === family;
      tab.setAttribute("aria-selected", String(isOn));
      tab.tabIndex = isOn ? 0 : -1;
      if (isOn) this.place.setAttribute("aria-labelledby", tab.id);
    }
    const there = (key) => key === "name" || key === "share" || (key in this.rows && this.kept.some((row) => this.rows[key][row] !== 0));
    const ahead = ["name", there("gpu") ? "gpu" : "cpu", "share"], place = ({ key }) => (ahead.includes(key) ? ahead.indexOf(key) : ahead.length);
    this.columns = this.everyColumn.filter(({ key }) => there(key) && !this.isLeftOut(key)).sort((one, other) => place(one) - place(other));
    const isKnown = (key) => key === this.firstSort && key in this.rows || this.columns.some((column) => column.key === key);
    const wanted = sort && isKnown(sort.key) ? sort : this.sort;
    this.sort = isKnown(wanted.key) && (there(wanted.key) || wanted.key === "name") ? wanted : { key: this.sortWithout(there), up: false };
    this.addShares(there);
    this.build();
    this.arrange();
  }

  /** What to sort by, where the table has not what was asked for. */
  sortWithout(there) { return there("gpu") ? "gpu" : "cpu"; }

  /** Shares are of the time on the GPU where the table has any, of the CPU's otherwise. */
  addShares(there) {
    const time = there("gpu") ? "gpu" : "cpu", sums = this.rows.totals;
    this.rows.share = this.rows[time].map((value) => value / Math.max(sums[this.family] ?? sums[time], 1));
    this.largest = this.kept.reduce((most, row) => Math.max(most, this.rows.share[row]), 0) || 1; // the length of a full bar
  }

  build() {
    const grid = element("div", {}, { role: "grid", "aria-rowcount": this.kept.length + 1 });
    grid.style.setProperty("--columns", this.columns.map(({ wide }) => wide).join(" "));
    const head = element("div", { className: "head" }, { role: "row" });
    for (const column of this.columns) {
      const cell = element("div", {}, { role: "columnheader" });
      const button = element("button", { type: "button", textContent: column.title, title: column.help || "" });
      if (column.key !== "shape") button.addEventListener("click", () => this.sortBy(column.key));
      else button.disabled = true;
      cell.append(button);
      cell.dataset.key = column.key;
      head.append(cell);
    }
    this.body = element("div", { className: "body" }, { role: "rowgroup" });
    grid.append(head, this.body);
    this.place.replaceChildren(grid);
    this.head = head;
    this.place.scrollTop = 0;
  }

  sortBy(key, up) {
    this.sort = { key, up: up ?? (this.sort.key === key ? !this.sort.up : key === "name") };
    this.arrange();
    this.tell.changed();
  }

  filter(text) {
    this.filterText = text;
    this.arrange();
    this.tell.changed();
  }

  /** Filters and sorts; draws what is in view. */
  arrange() {
    const began = performance.now();
    const matches = matcher(this.filterText), { key, up } = this.sort;
    let order = this.sorted(key);
    if (matches && this.filterText.trim() !== "") order = order.filter((row) => matches(this.strings[this.rows.full[row]]) || matches(this.names[row]));
    if (!up) order = order.slice().reverse();
    this.order = order;
    for (const cell of this.head.children) cell.setAttribute("aria-sort", cell.dataset.key === key ? (up ? "ascending" : "descending") : "none");
    for (const cell of this.head.children) cell.firstChild.textContent = this.everyColumn.find((column) => column.key === cell.dataset.key).title + (cell.dataset.key === key ? (up ? " ▴" : " ▾") : "");
    const count = document.getElementById("filtered");
    count.textContent = matches === null ? "no regex" : order.length === this.kept.length ? "" : `${countText(order.length)} of ${countText(this.kept.length)}`;
    this.drawn = null;
    this.draw();
    document.documentElement.dataset.sorted = (performance.now() - began).toFixed(1);
  }

  get rowHeight() { return parseFloat(getComputedStyle(document.documentElement).fontSize) * 1.9; }

  draw() {
    const high = this.rowHeight, { order } = this;
    this.body.style.height = `${Math.max(order.length, 1) * high}px`;
    const room = this.place.clientHeight || 500;
    const first = Math.max(0, Math.floor(this.place.scrollTop / high) - BESIDE), last = Math.min(order.length, Math.ceil((this.place.scrollTop + room) / high) + BESIDE);
    if (this.drawn && this.drawn[0] === first && this.drawn[1] === last) return;
    this.drawn = [first, last];
    const rows = [];
    for (let place = first; place < last; place += 1) rows.push(this.rowAt(place, high));
    if (order.length === 0) {
      const none = element("div", { className: "row" }, { role: "row" });
      none.append(element("div", { textContent: "nothing matches" }, { role: "gridcell" }));
      rows.push(none);
    }
    this.body.replaceChildren(...rows);
  }

  rowAt(place, high) {
    const row = this.order[place];
    const made = element("div", { className: "row" }, { role: "row", "aria-rowindex": place + 2, "aria-selected": String(row === this.chosen) });
    made.dataset.row = row;
    made.style.top = `${place * high}px`;
    for (const column of this.columns) {
      if (column.key === "name") {
        const cell = element("div", { textContent: this.names[row], title: this.strings[this.rows.full[row]], className: this.own.has(row) ? "own" : "" }, { role: "gridcell" });
        made.append(cell);
        continue;
      }
      if (column.key === "shape") {
        const cell = element("div", {}, { role: "gridcell" });
        if (this.rows.shape[row]) cell.append(shapeOf(this.rows.shape[row]));
        made.append(cell);
        continue;
      }
      const value = this.rows[column.key][row];
      const cell = element("div", { className: column.share ? "cell share" : "cell" }, { role: "gridcell" });
      cell.dataset.key = column.key;
      cell.dataset.value = value ?? "";
      const text = value === 0 && column.key !== "count" ? "-" : column.text(value);
      if (column.share) {
        cell.style.setProperty("--share", `${(100 * Math.min(value / this.largest, 1)).toFixed(1)}%`);
        cell.append(element("span", { textContent: text }));
      } else cell.textContent = text;
      made.append(cell);
    }
    return made;
  }

  /** Chooses a row, or none with -1: its details, and its events on the timeline. */
  choose(row, isTold = true) {
    this.chosen = row;
    for (const each of this.body.children) each.setAttribute("aria-selected", String(Number(each.dataset.row) === row));
    this.describe();
    if (isTold) this.tell.chosen(row);
  }

  reveal(row) {
    const place = this.order.indexOf(row);
    if (place < 0) return;
    const top = place * this.rowHeight, room = this.place.clientHeight - 2 * this.rowHeight;
    if (top < this.place.scrollTop || top > this.place.scrollTop + room) this.place.scrollTop = Math.max(0, top - room / 2);
    this.draw();
  }

  describe() {
    const details = document.getElementById("row-details"), { chosen: row, rows } = this;
    details.hidden = row < 0;
    document.getElementById("to-timeline").hidden = row < 0;
    if (row < 0) return;
    details.replaceChildren(element("h3", { textContent: this.strings[rows.full[row]] }), listOf(this.factsOf(row)));
    if (rows.source?.[row]) details.append(this.sourceOf(row));
    const pairs = (rows.pairs && rows.pairs[row]) || [];
    if (pairs.length) {
      details.append(element("p", { textContent: "Launched in:" }));
      const launched = element("ul");
      const whole = Math.max(rows.gpu[row], 1);
      for (const [where, count, time] of pairs) launched.append(element("li", { textContent: `${shareText(time / whole)} · ${countText(count)} times · ${this.strings[where]}` }));
      details.append(launched);
    }
  }

  /** The lines of source around the hot one of a function. */
  sourceOf(row) {
    const { first, hot, lines } = this.rows.source[row], text = element("pre", { className: "source" }, { tabindex: 0, "aria-label": "Source" });
    lines.forEach((line, at) => text.append(element(first + at === hot ? "mark" : "span", { textContent: `${first + at}  ${line}` }), "\n"));
    return text;
  }

  /** What is known of a row: names and values. */
  factsOf(row) {
    const { rows } = this, times = [["GPU", "gpu"], ["CPU", "cpu"], ["min", "min"], ["p50", "p50"], ["p95", "p95"], ["p99", "p99"], ["max", "max"]];
    return [
      ["kind", this.strings[rows.kind[row]]], ["count", countText(rows.count[row])],
      ...times.filter(([, key]) => rows[key][row]).map(([name, key]) => [name, timeText(rows[key][row])]),
    ];
  }

  // -- export ------------------------------------------------------------------------------------------------------

  /** All rows that the filter leaves, times in ns; what is not known is empty. */
  csv() {
    const columns = this.columns.filter(({ key }) => key !== "shape");
    const titles = columns.map(({ key, text, isTime }) => (isTime || text === timeText ? `${key}_ns` : key));
    // A spreadsheet would run such a cell as a formula.
    const quoted = (value) => `"${String(value).replace(/^[=+\-@\t]/, "'$&").replaceAll('"', '""')}"`;
    const cell = ({ key, text, isText }, row) => {
      if (key === "name") return quoted(this.strings[this.rows.full[row]]);
      const value = this.rows[key][row];
      return isText ? quoted(text(value)) : value ?? "";
    };
    return [titles.join(","), ...Array.from(this.order, (row) => columns.map((column) => cell(column, row)).join(","))].join("\n");
  }

  markdown() {
    const shown = this.columns.filter(({ key }) => key !== "shape");
    const line = (cells) => `| ${cells.join(" | ")} |`;
    const rows = Array.from(this.order.subarray(0, MOST_COPIED), (row) => shown.map(({ key, text }) => (key === "name" ? `\`${this.names[row].replaceAll("|", "\\|").replaceAll("`", "'")}\`` : text(this.rows[key][row]))));
    return [line(shown.map(({ title }) => title)), line(shown.map(({ key }) => (key === "name" ? "---" : "---:"))), ...rows.map(line)].join("\n");
  }

  // -- pointer and keys --------------------------------------------------------------------------------------------

  listen() {
    this.place.addEventListener("scroll", () => requestAnimationFrame(() => this.draw()));
    new ResizeObserver(() => { this.drawn = null; this.draw(); }).observe(this.place);
    this.place.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (row && row.dataset.row) this.choose(Number(row.dataset.row) === this.chosen ? -1 : Number(row.dataset.row));
    });
    this.place.addEventListener("keydown", (event) => {
      if (event.target !== this.place) return;
      const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity }[event.key];
      if (event.key === "Escape") { this.choose(-1); return; }
      if (event.key === "Enter" && this.chosen >= 0) { this.tell.wantsTimeline(this.chosen); return; }
      if (by === undefined || this.order.length === 0) return;
      event.preventDefault();
      const now = this.order.indexOf(this.chosen);
      const next = Math.min(Math.max(now < 0 ? 0 : now + by, 0), this.order.length - 1);
      this.choose(this.order[next]);
      this.reveal(this.order[next]);
    });
    for (const tab of this.tabs) {
      tab.addEventListener("click", () => { this.choose(-1, false); this.open(tab.dataset.family); this.tell.changed(); });
      tab.addEventListener("keydown", (event) => {
        const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!by) return;
        const next = this.tabs[(this.tabs.indexOf(tab) + by + this.tabs.length) % this.tabs.length];
        next.click();
        next.focus();
      });
    }
    const filter = document.getElementById("filter");
    filter.addEventListener("input", () => this.filter(filter.value));
    document.getElementById("csv").addEventListener("click", () => {
      const link = element("a", { href: URL.createObjectURL(new Blob([this.csv()], { type: "text/csv" })), download: `${this.family}.csv` });
      link.click();
      URL.revokeObjectURL(link.href);
    });
    document.getElementById("markdown").addEventListener("click", async (event) => {
      const text = this.markdown();
      try { await navigator.clipboard.writeText(text); } catch {
        const area = document.body.appendChild(element("textarea", { value: text }));
        area.select();
        document.execCommand("copy");
        area.remove();
      }
      this.tell.say(`${Math.min(this.order.length, MOST_COPIED)} rows copied`);
      event.target.textContent = "Copied";
      setTimeout(() => { event.target.textContent = "Copy as Markdown"; }, 1500);
    });
    document.getElementById("to-timeline").addEventListener("click", () => this.tell.wantsTimeline(this.chosen));
  }
}

