// The page of a job: heat maps of its ranks, a timeline of some of them, and their table.

import { countText, fixed, shareText, timeText } from "./units.js";
import { element } from "./elements.js";
import { readColumn, takeColumn } from "./data.js";
import { colors, makeToggle, mixed, whenThemeChanges } from "./theme.js";
import { cut, sized, zoomOf } from "./pen.js";
import { Model } from "./model.js";
import { Timeline } from "./timeline.js";
import { Tables } from "./table.js";
import { listenToKeys, makeHelp } from "./keys.js";
import { Sections, restoreParts, say, stateOf, takeData } from "./sections.js";

const page = document.documentElement;
const data = takeData("fleet");
const MORE = 1, LESS = 7; // slots of the palette
const LEFT = 92, TOP = 18, TALLEST = 26; // pixels of a matrix: its margins, and its highest row
const TONES = 255; // of a scale, on each side
const FEWEST = 4; // ranks in the closest view
const { rows } = data, count = rows.name.length;
const signed = (share) => `${share >= 0 ? "+" : ""}${fixed(100 * share, 1)} %`;
const named = (column) => (value) => data[column][value - 1];

const FLEET_KEYS = [
  ["?", "this list"], ["/", "search in the timeline or the table"], ["1 … 9", "to the sections"], ["t", "light or dark"],
  ["↑ ↓ ← →", "heat map: from cell to cell; PageUp, PageDown, Home and End too"], ["+ −", "heat map: fewer ranks, more ranks"], ["0", "heat map: all ranks"], ["Enter", "heat map: choose the rank in the table"],
  ["w s", "timeline: zoom in, out"], ["a d", "timeline: move"], ["f", "timeline: fit what is chosen"], ["[ ]", "timeline: event before, after, of the same name"],
];

/** A heat map with a row per rank. Where ranks or columns share a pixel, it shows the strongest value. */
class Matrix {
  /** `views` have a title, the names of columns, the codes of all cells (0 for none) and what a code means. */
  constructor(id, views, tell) {
    Object.assign(this, { id, views, tell, order: Uint32Array.from({ length: count }, (_, row) => row), from: 0, to: count, at: null });
    this.place = document.getElementById(`${id}-matrix`);
    this.canvas = this.place.querySelector("canvas");
    this.place.style.height = `min(clamp(10rem, 60vh, 60rem), ${(TOP + TALLEST * count + 2) * zoomOf()}px)`;
    this.choice = document.getElementById(`${id}-value`);
    this.choice.append(...views.map(({ title }, value) => element("option", { value, textContent: title })));
    this.choice.addEventListener("change", () => this.see(Number(this.choice.value)));
    this.listen();
    whenThemeChanges(() => { this.paint(); this.draw(); });
    new ResizeObserver(() => this.draw()).observe(this.place);
    this.see(0);
  }

  see(value) {
    this.view = this.views[value] || this.views[0];
    this.choice.value = this.views.indexOf(this.view);
    this.at = null;
    this.paint();
    this.draw();
    this.tell.changed();
  }

  /** Ranks in this order, from the top. */
  arrange(order) { this.order = order; this.at = null; this.draw(); }

  /** The colors of all codes, and the scale beside the map. */
  paint() {
    const { view } = this, most = view.most, scale = document.getElementById(`${this.id}-scale`);
    const ends = [mixed(colors.panel, colors.slots[LESS], 1), colors.panel, mixed(colors.panel, colors.slots[MORE], 1)];
    const rgb = (share) => mixed(ends[1], share < 0 ? ends[0] : ends[2], Math.min(1, Math.abs(share))).match(/\d+/g).map(Number);
    this.shades = Uint32Array.from({ length: 2 * TONES + 1 }, (_, at) => {
      const [red, green, blue] = rgb(at / TONES - 1);
      return (255 << 24) | (blue << 16) | (green << 8) | red; // as the bytes of a picture lie in memory
    });
    const bar = element("i");
    bar.style.background = `linear-gradient(to right, ${view.isSigned ? `${ends[0]}, ` : ""}${ends[1]}, ${ends[2]})`;
    scale.replaceChildren(view.isSigned ? view.text(-most) : view.text(0), bar, `${view.text(most)} and more`);
  }

  shadeOf(code) { return this.shades[TONES + Math.round(TONES * Math.min(1, Math.max(-1, this.view.value(code) / this.view.most)))]; }

  /** The place of the strongest value of a block, as [place in the order, column]; null where no cell has any. */
  strongest(top, bottom, left, right) {
    const { codes, names, value } = this.view, wide = names.length;
    let best = null, most = -1;
    for (let place = top; place < bottom; place += 1) {
      const first = this.order[place] * wide;
      for (let column = left; column < right; column += 1) {
        const code = codes[first + column];
        if (code === 0) continue;
        const strength = Math.abs(value(code));
        if (strength > most) { most = strength; best = [place, column]; }
      }
    }
    return best;
  }

  /** The first row or column of each pixel of `pixels`, and the one behind the last. */
  edges(from, to, pixels) {
    const parts = Math.max(1, Math.min(to - from, Math.floor(pixels)));
    return Array.from({ length: parts + 1 }, (_, part) => from + Math.floor(((to - from) * part) / parts));
  }

  draw() {
    const began = performance.now(), zoom = zoomOf(), width = this.place.clientWidth / zoom, high = this.place.clientHeight / zoom;
    const pen = sized(this.canvas, width, high), { view } = this, wide = width - LEFT, tall = high - TOP;
    if (wide < 8 || tall < 8) return;
    const across = this.edges(0, view.names.length, wide), down = this.edges(this.from, this.to, tall);
    Object.assign(this, { across, down });
    const image = new ImageData(across.length - 1, down.length - 1), pixels = new Uint32Array(image.data.buffer);
    for (let y = 0, pixel = 0; y < down.length - 1; y += 1) {
      for (let x = 0; x < across.length - 1; x += 1, pixel += 1) {
        const found = this.strongest(down[y], down[y + 1], across[x], across[x + 1]);
        if (found) pixels[pixel] = this.shadeOf(view.codes[this.order[found[0]] * view.names.length + found[1]]);
      }
    }
    const cells = element("canvas", { width: image.width, height: image.height });
    cells.getContext("2d").putImageData(image, 0, 0);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(cells, LEFT, TOP, wide, tall);
    this.label(pen, wide, tall);
    if (this.at) {
      const [x, y, w, h] = this.boxOf(this.at, wide, tall);
      pen.strokeStyle = colors.ink;
      pen.lineWidth = 2;
      pen.strokeRect(x - 1, y - 1, w + 2, h + 2);
    }
    this.place.dataset.shown = `${view.key} ${this.from}-${this.to} ${image.width}x${image.height}`;
    this.place.dataset.frame = (performance.now() - began).toFixed(1);
  }

  label(pen, wide, tall) {
    pen.fillStyle = colors.faint;
    const { names } = this.view, each = wide / names.length, apart = Math.ceil(64 / each);
    for (let column = 0; column < names.length; column += apart) pen.fillText(cut(names[column], Math.max(each * apart - 4, 40)), LEFT + column * each + 2, TOP / 2);
    const row = tall / (this.to - this.from), every = Math.ceil(16 / row);
    for (let place = this.from; place < this.to; place += every) pen.fillText(cut(nameOf(this.order[place]), LEFT - 8), 4, TOP + (place - this.from + 0.5) * row + (every > 1 ? 4 : 0));
  }

  boxOf([place, column], wide, tall) {
    const x = (at) => LEFT + (at / this.view.names.length) * wide, y = (at) => TOP + ((at - this.from) / (this.to - this.from)) * tall;
    return [x(column), y(place), Math.max(2, x(column + 1) - x(column)), Math.max(2, y(place + 1) - y(place))];
  }

  /** Chooses a cell, and says what it has. */
  go(at, isSaid = true) {
    this.at = at;
    const text = at ? this.words(at) : "";
    document.getElementById(`${this.id}-cell`).textContent = text;
    if (isSaid) say(text);
    if (at && (at[0] < this.from || at[0] >= this.to)) this.show(at[0] - (this.to - this.from) / 2, at[0] + (this.to - this.from) / 2);
    else this.draw();
  }

  words([place, column]) {
    const row = this.order[place], { view } = this, code = view.codes[row * view.names.length + column], host = rows.host[row] ? ` on ${named("hosts")(rows.host[row])}` : "";
    return `${nameOf(row)}${host}, ${view.whole(column)}: ${code ? `${view.title} ${view.text(view.value(code))}` : "not known"}`;
  }

  show(from, to) {
    const span = Math.round(Math.min(count, Math.max(FEWEST, to - from)));
    this.from = Math.round(Math.min(Math.max(0, from), count - span));
    this.to = this.from + span;
    this.draw();
  }

  zoom(factor, around = this.at ? this.at[0] : (this.from + this.to) / 2) {
    this.show(around - (around - this.from) * factor, around - (around - this.from) * factor + (this.to - this.from) * factor);
  }

  /** The cell below a position on the page, the strongest of those that share its pixel; null beside the cells. */
  below({ clientX, clientY }) {
    const box = this.place.getBoundingClientRect(), zoom = zoomOf();
    const x = ((clientX - box.left) / zoom - LEFT) / (this.place.clientWidth / zoom - LEFT), y = ((clientY - box.top) / zoom - TOP) / (this.place.clientHeight / zoom - TOP);
    if (x < 0 || x >= 1 || y < 0 || y >= 1) return null;
    const column = Math.floor(x * (this.across.length - 1)), row = Math.floor(y * (this.down.length - 1));
    return this.strongest(this.down[row], this.down[row + 1], this.across[column], this.across[column + 1]) || [this.down[row], this.across[column]];
  }

  listen() {
    const { place, id } = this, click = (what, act) => document.getElementById(`${id}-${what}`).addEventListener("click", act);
    click("in", () => this.zoom(0.5));
    click("out", () => this.zoom(2));
    click("whole", () => this.show(0, count));
    let drag = null;
    place.addEventListener("pointerdown", (event) => { drag = { y: event.clientY, from: this.from, moved: false }; });
    place.addEventListener("pointermove", (event) => {
      if (!drag || !(event.buttons & 1)) { drag = null; const at = this.below(event); if (at) document.getElementById(`${id}-cell`).textContent = this.words(at); return; }
      drag.moved = drag.moved || Math.abs(event.clientY - drag.y) > 4;
      const by = ((drag.y - event.clientY) / this.place.clientHeight) * (this.to - this.from);
      if (drag.moved) this.show(drag.from + by, drag.from + by + this.to - this.from);
    });
    place.addEventListener("pointerup", (event) => { if (drag && !drag.moved) this.go(this.below(event)); drag = null; });
    place.addEventListener("dblclick", () => this.tell.chosen(this.at));
    place.addEventListener("wheel", (event) => {
      if (event.ctrlKey || document.activeElement !== place) return; // the page is being scrolled past
      event.preventDefault();
      const at = this.below(event);
      this.zoom(Math.exp(Math.min(Math.max(event.deltaY, -120), 120) * 0.0022), at ? at[0] : undefined);
    }, { passive: false });
    place.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const many = Math.max(1, Math.round((this.to - this.from) / 10)), step = Math.max(1, Math.round((this.to - this.from) / (this.down.length - 1)));
      const move = (by, aside = 0) => {
        const [row, column] = this.at || [this.from, 0], go = this.at ? [by, aside] : [0, 0];
        this.go([Math.min(Math.max(row + go[0], 0), count - 1), Math.min(Math.max(column + go[1], 0), this.view.names.length - 1)]);
      };
      const act = {
        ArrowUp: () => move(-step), ArrowDown: () => move(step), ArrowLeft: () => move(0, -1), ArrowRight: () => move(0, 1), PageUp: () => move(-many), PageDown: () => move(many),
        Home: () => move(-count), End: () => move(count), "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.show(0, count),
        Enter: () => this.tell.chosen(this.at), Escape: () => this.go(null),
      }[event.key];
      if (!act) return;
      event.preventDefault();
      event.stopPropagation();
      act();
    });
  }
}

const nameOf = (row) => data.strings[rows.name[row]];

class RankTable extends Tables {
  get everyColumn() {
    const share = (key, title, help) => ({ key, title, wide: "5.4rem", text: (value) => (value === null ? "-" : shareText(value)), unknown: -1, help });
    return [
      { key: "name", title: "rank", wide: "minmax(6rem, 1fr)" },
      { key: "host", title: "host", wide: "minmax(7rem, 1fr)", text: named("hosts"), isText: true },
      { key: "cost", title: "costs others", wide: "7.4rem", text: timeText, help: "GPU time of other ranks that waited for this one" },
      { key: "cause", title: "cause", wide: "minmax(8rem, 1fr)", text: named("causes"), isText: true },
      { key: "step", title: "step", wide: "5.8rem", text: timeText, help: "median" },
      { key: "compute", title: "compute", wide: "6rem", text: timeText, help: "of a step, median" },
      { key: "slower", title: "to equals", wide: "6rem", text: (value) => (value === null ? "-" : signed(value)), unknown: -Infinity, help: "compute, relative to the ranks of its role" },
      share("wait", "waits", "of the time of steps"),
      share("exposed", "exposed", "communication without compute, of the time of steps"),
      share("idle", "idle", "of the time of steps"),
      { key: "role", title: "role", wide: "4.4rem", text: countText },
      { key: "device", title: "device", wide: "minmax(8rem, 1fr)", text: named("devices"), isText: true },
      { key: "verdict", title: "recording", wide: "minmax(9rem, 1.5fr)", text: named("verdicts"), isText: true },
    ];
  }
  get firstSort() { return "cost"; }
  isLeftOut() { return false; }
  sortWithout(there) { return there("slower") ? "slower" : "compute"; }
  addShares() { /* each rank has shares of its own steps */ }
  factsOf(row) { return this.columns.slice(1).filter(({ key }) => rows[key][row] !== null && rows[key][row] !== 0).map(({ key, title, text }) => [title, text(rows[key][row])]); }
}

const parts = { timeline: null, tables: null, icicle: null }, maps = {};
const orderOf = (name) => {
  const order = Uint32Array.from({ length: count }, (_, row) => row);
  if (name !== "rank") order.sort((one, other) => (["cost", "slower"].includes(name) ? -1 : 1) * ((rows[name][one] ?? -Infinity) - (rows[name][other] ?? -Infinity) || 0) || one - other);
  return order;
};
const choice = document.getElementById("order");
const sections = new Sections({
  state: () => {
    const found = stateOf(parts);
    if (choice && choice.value !== "rank") found.set("order", choice.value);
    for (const [name, map] of Object.entries(maps)) if (map.views.indexOf(map.view)) found.set(name, map.view.key);
    return found;
  },
  restore: (wanted) => {
    restoreParts(parts, wanted, null);
    if (choice && wanted.has("order")) { choice.value = wanted.get("order"); arrange(); }
    for (const [name, map] of Object.entries(maps)) if (wanted.has(name)) map.see(map.views.findIndex(({ key }) => key === wanted.get(name)));
  },
});
const keep = () => sections.keep();
const arrange = () => { const order = orderOf(choice.value); for (const map of Object.values(maps)) map.arrange(order); keep(); };

/** What the codes of a kind of matrix mean. */
const KINDS = {
  ratio: { value: (code) => (code - 128) * data.ratio_unit, text: signed, isSigned: true, least: 0.05 },
  share: { value: (code) => (code - 1) / 254, text: shareText, least: 0.02 },
  time: { value: (code) => (code - 1) * 1000, text: timeText, least: 1000 },
};

/** Almost the strongest value of a view: few cells may be far above all others. */
function mostOf(codes, kind) {
  const strengths = Float64Array.from(codes.filter((code) => code), (code) => Math.abs(kind.value(code))).sort();
  return Math.max(kind.least, strengths.length ? strengths[Math.floor(0.998 * (strengths.length - 1))] : 0);
}

makeToggle(document.getElementById("theme"));
for (const [id, views] of Object.entries(data.matrices)) {
  const read = [];
  for (const { key, title, kind, what, names } of views) {
    const codes = await readColumn(takeColumn(`cells-${key}`), data.columns[`cells-${key}`]);
    read.push({ key, title, names, codes, ...KINDS[kind], most: mostOf(codes, KINDS[kind]), whole: (column) => `${what} ${names[column]}` });
  }
  maps[id] = new Matrix(id, read, {
    changed: keep,
    chosen: (at) => { if (at && parts.tables) { const row = maps[id].order[at[0]]; parts.tables.choose(row); parts.tables.reveal(row); document.getElementById("tables").scrollIntoView(); } },
  });
}
if (choice) choice.addEventListener("change", arrange);
if (document.getElementById("lanes")) parts.timeline = new Timeline(new Model(data), { view: keep, say, chosen: keep });
const { timeline } = parts;
if (document.getElementById("rows")) {
  const place = (row) => maps.steps && maps.steps.go([maps.steps.order.indexOf(row), 0], false);
  parts.tables = new RankTable(data, { changed: keep, say, chosen: (row) => { if (row >= 0) place(row); keep(); }, wantsTimeline: (row) => { place(row); document.getElementById("steps")?.scrollIntoView(); } });
  document.getElementById("to-timeline").textContent = "Show in the heat map";
}
listenToKeys({ help: makeHelp(FLEET_KEYS), sections: sections.names, timelineKey: (event) => timeline && timeline.key(event), nowIn: () => sections.current });
sections.watch();
sections.restore();
if (timeline) {
  await timeline.model.read(data, () => { timeline.layout(); timeline.draw(); });
  timeline.draw();
}
sections.restore(false);
page.dataset.complete = performance.now().toFixed(0);
