// The call tree as an icicle: each box as wide as its share, its callees below it; or inverted, its callers.

import { countText, matcher, shareText, timeText } from "./units.js";
import { element, listOf, showLegend } from "./elements.js";
import { colors, slotIn, whenThemeChanges } from "./theme.js";
import { box, sized, zoomOf } from "./pen.js";

const HIGH = 20;
const NARROW = 1.2; // pixels: narrower boxes are drawn as one
const MOST_CALLERS = 100; // of an inverted tree, one below the other
const FURTHER = "further callers";
const KINDS = { gpu: "GPU time", cpu: "CPU time", count: "launches and calls", samples: "Python, by samples" };

const sumOf = (nodes, key) => nodes.reduce((sum, node) => sum + node[key], 0);

/**
 * The nodes of a tree that the page carries as columns, parents as differences from the one before, each with its
 * children; the first is the root.
 */
function nodesOf(tree, strings) {
  const values = Object.keys(tree).filter((key) => key !== "parent" && key !== "name" && key !== "kind");
  let parent = 0;
  const nodes = tree.parent.map((step, place) => ({
    parent: (parent += step), name: strings[tree.name[place]], kind: strings[tree.kind[place]], children: [], ...Object.fromEntries(values.map((key) => [key, tree[key][place]])),
  }));
  for (const node of nodes) if (node.parent >= 0) nodes[node.parent].children.push(node);
  // Children follow their parents.
  for (const node of nodes.slice().reverse()) node.leaves = node.children.length ? sumOf(node.children, "leaves") : node.count;
  return nodes;
}

export class Icicle {
  constructor(data, tell) {
    this.tell = tell;
    this.strings = data.strings;
    this.rows = data.rows;
    this.legend = data.things.legend;
    this.calls = nodesOf(data.tree, this.strings);
    this.sampled = data.samples && nodesOf(data.samples, this.strings);
    this.canvas = document.getElementById("icicle");
    this.place = this.canvas.parentElement;
    this.details = document.getElementById("tree-details");
    this.select = document.getElementById("tree-by");
    const there = this.measures();
    this.by = this.firstOf(there);
    for (const key of there) this.select.append(element("option", { value: key, textContent: this.kinds[key], selected: key === this.by }));
    this.first = this.by;
    this.isInverted = false;
    this.matches = null;
    this.plant();
    this.listen();
    whenThemeChanges(() => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.place);
  }

  /** What boxes may be wide by, in words. */
  get kinds() { return KINDS; }

  /** Those that the tree has. */
  measures() {
    const [root] = this.calls;
    const there = { gpu: root.gpu > 0, cpu: root.cpu > 0, count: root.children.length > 0, samples: Boolean(this.sampled) };
    return Object.keys(KINDS).filter((key) => there[key]);
  }

  /** What to begin with: work of GPUs where there is any, what samples saw otherwise. */
  firstOf(there) { return ["gpu", "samples", "cpu"].find((key) => there.includes(key)) || there[0] || "cpu"; }

  /** Shows what boxes are wide by: one of `kinds`. */
  measureBy(key) {
    if (key === this.by || ![...this.select.options].some((option) => option.value === key)) return;
    this.by = key;
    this.select.value = key;
    this.plant();
  }

  /** Makes the boxes of what is shown: value, depth and place of each. */
  plant() {
    this.top = this.isInverted ? this.inverted() : this.upright();
    this.zoomed = this.top;
    this.chosen = null;
    this.describe(this.top);
    showLegend(document.getElementById("tree-colors"), this.legend, this.nodes.map((node) => node.category ?? -1));
    this.find(document.getElementById("tree-find").value); // which draws
  }

  get nodes() { return this.by === "samples" ? this.sampled : this.calls; }
  get root() { return this.nodes[0]; }
  get key() { return this.by === "samples" ? "cpu" : this.by; }

  /** By count, the calls and launches below a node: those of its leaves. */
  valueOf(node) { return node[this.by === "count" ? "leaves" : this.key]; }

  /** What a node has without those in it. */
  aloneOf(node, key) {
    if (key === "count") return node.children.length ? 0 : node.count;
    return key === "cpu" ? node.self_cpu : Math.max(0, node[key] - sumOf(node.children, key)); // on a CPU children may be on other threads
  }

  upright() {
    const made = this.nodes.map((node) => ({ node, parent: null, name: node.name, value: this.valueOf(node), children: [] }));
    for (const each of made.slice().reverse()) {
      each.children.reverse().sort((one, other) => other.value - one.value);
      each.value = Math.max(each.value, sumOf(each.children, "value")); // regions of other threads may add up to more
      if (each.node === this.root || each.value <= 0) continue;
      each.parent = made[each.node.parent];
      each.parent.children.push(each);
    }
    return made[0];
  }

  /** What each has alone by name, with who called it below; `inside` are the nodes whose own a box has. */
  inverted() {
    const make = (node, parent, name) => ({ node, parent, name, value: 0, children: [], inside: [] });
    const top = make(this.root, null, "all"), made = [[top, new Map()]];
    for (const node of this.nodes) {
      const own = this.aloneOf(node, this.key);
      if (own <= 0 || node === this.root) continue;
      top.value += own;
      top.inside.push(node);
      let [at, byName] = made[0];
      for (let caller = node, depth = 0; caller !== this.root && depth <= MOST_CALLERS; caller = this.nodes[caller.parent], depth += 1) {
        const name = depth < MOST_CALLERS ? caller.name : FURTHER;
        if (!byName.has(name)) {
          made.push([make(caller, at, name), new Map()]);
          at.children.push(made.at(-1)[0]);
          byName.set(name, made.at(-1));
        }
        [at, byName] = byName.get(name);
        at.value += own;
        at.inside.push(node);
      }
    }
    for (const [each] of made) each.children.sort((one, other) => other.value - one.value);
    return top;
  }

  /** What shares are of: what was recorded by samples, as in their table; otherwise all that the tree has. */
  get whole() { return Math.max(1, this.by === "samples" ? this.rows.totals.python : this.top.value); }

  text(value) { return this.by === "count" ? countText(value) : timeText(value); }

  draw() {
    const { place } = this, width = place.clientWidth / zoomOf();
    if (!width) return;
    this.boxes = [];
    const above = [];
    for (let at = this.zoomed.parent; at; at = at.parent) above.unshift(at);
    let deepest = above.length;
    const left = [{ each: this.zoomed, x: 0, wide: width, depth: above.length }];
    while (left.length) {
      const { each, x, wide, depth } = left.pop();
      deepest = Math.max(deepest, depth + 1);
      this.boxes.push({ each, x, wide, depth });
      let from = x;
      const scale = each.value > 0 ? wide / each.value : 0;
      let rest = 0, restFrom = 0, restCount = 0;
      for (const child of each.children) {
        const size = child.value * scale;
        if (size < NARROW) { if (rest === 0) restFrom = from; rest += size; restCount += 1; } else left.push({ each: child, x: from, wide: size, depth: depth + 1 });
        from += size;
      }
      if (rest >= NARROW) {
        this.boxes.push({ each: null, x: restFrom, wide: rest, depth: depth + 1, count: restCount });
        deepest = Math.max(deepest, depth + 2);
      }
    }
    above.forEach((each, depth) => this.boxes.push({ each, x: 0, wide: width, depth, isAbove: true }));
    // Up to the style sheet's height; the canvas is only as high as the visible part.
    place.style.height = `${(deepest * HIGH + 2) * zoomOf() + 2}px`;
    const high = place.clientHeight / zoomOf();
    place.querySelector(".spacer").style.height = `${Math.max(0, deepest * HIGH + 2 - high) * zoomOf()}px`;
    const pen = sized(this.canvas, width, high), top = this.scrolled;
    for (const { each, x, wide, depth, isAbove, count } of this.boxes) {
      const y = depth * HIGH - top;
      if (y < -HIGH || y > high) continue;
      if (!each) {
        pen.fillStyle = colors.rest;
        pen.fillRect(x, y, wide - 0.7, HIGH - 1);
        if (wide > 60) { pen.fillStyle = colors.paper; pen.fillText(`${count} smaller`, x + 4, y + HIGH / 2, wide - 6); }
        continue;
      }
      const isFound = this.matches && this.matches(each.name);
      pen.globalAlpha = isAbove ? 0.55 : this.matches && !isFound ? 0.22 : 1;
      this.drawBox(pen, each, x, y, wide, HIGH - 1, width);
      pen.globalAlpha = 1;
      if (each === this.chosen) {
        pen.strokeStyle = colors.ink;
        pen.lineWidth = 2;
        pen.strokeRect(x + 1, y + 1, Math.max(1, wide - 2), HIGH - 3);
        pen.lineWidth = 1;
      }
    }
  }

  drawBox(pen, each, x, y, wide, high, edge) {
    const slot = slotIn(this.legend, each === this.top ? -1 : each.node.category, each.name);
    box(pen, x, y, wide, high, slot, `${each.name}  ${shareText(each.value / this.whole)}`, edge);
  }

  at(event) {
    const place = this.canvas.getBoundingClientRect(), x = (event.clientX - place.left) / zoomOf(), depth = Math.floor(((event.clientY - place.top) / zoomOf() + this.scrolled) / HIGH);
    return this.boxes.find((each) => each.depth === depth && x >= each.x && x < each.x + each.wide) || null;
  }

  /** What of the drawing lies above what is in view. */
  get scrolled() { return this.place.scrollTop / zoomOf(); }

  /** Draws with a box in view. */
  reveal(each) {
    this.draw();
    const found = this.boxes.find((one) => one.each === each), high = this.place.clientHeight / zoomOf();
    if (!found) return;
    const y = found.depth * HIGH, top = Math.min(Math.max(this.scrolled, y + HIGH - high), y);
    if (top !== this.scrolled) this.place.scrollTop = top * zoomOf(); // which draws
  }

  zoom(each) {
    this.zoomed = each;
    this.chosen = each;
    this.describe(each);
    this.reveal(each);
    this.tell.changed();
  }

  /** The names from the top down to what is zoomed to, for the address. */
  get way() {
    const places = [];
    for (let at = this.zoomed; at.parent; at = at.parent) places.unshift(at.parent.children.indexOf(at));
    return places.join(".");
  }

  follow(way) {
    let at = this.top;
    for (const place of way ? way.split(".") : []) at = at.children[Number(place)] || at;
    this.zoomed = at;
    this.chosen = at;
    this.describe(at);
    this.reveal(at);
  }

  /** What is known of a box: names and values. */
  factsOf({ node, value }) {
    const facts = [[KINDS[this.by], `${this.text(value)}, ${shareText(value / this.whole)} of ${this.by === "samples" ? "the run" : "all"}`], ["kind", node.kind], ["count", countText(node.count)]];
    if (!this.isInverted) for (const [name, key] of [["GPU", "gpu"], ["GPU alone", "self_gpu"], ["CPU", "cpu"], ["CPU alone", "self_cpu"]]) if (node[key]) facts.push([name, timeText(node[key])]);
    return facts;
  }

  describe(each) {
    this.details.replaceChildren(element("h3", { textContent: each.name }), listOf(this.factsOf(each)));
  }

  find(query) {
    const matches = matcher(query), count = document.getElementById("tree-found");
    const { strings, rows } = this, inFull = new Set(rows.full.map((id, row) => matches?.(strings[id]) && strings[rows.name[row]]));
    this.matches = query.trim() === "" || !matches ? null : (name) => inFull.has(name) || matches(name);
    count.textContent = matches === null ? "no regex" : "";
    if (this.matches) {
      // A match includes its descendants.
      let found = 0;
      const left = [this.top];
      while (left.length) { const each = left.pop(); if (this.matches(each.name)) found += each.value; else left.push(...each.children); }
      count.textContent = `${shareText(found / this.whole)} found`;
    }
    this.draw();
  }

  listen() {
    this.place.addEventListener("scroll", () => this.draw());
    this.canvas.addEventListener("click", (event) => {
      const found = this.at(event);
      if (found && found.each) this.zoom(found.each);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      const found = this.at(event);
      this.canvas.title = found && found.each ? `${found.each.name}: ${this.text(found.each.value)}, ${shareText(found.each.value / this.whole)}` : "";
    });
    this.canvas.addEventListener("keydown", (event) => {
      const at = this.chosen || this.zoomed, beside = at.parent ? at.parent.children : [at], place = beside.indexOf(at);
      const next = { ArrowDown: at.children[0], ArrowUp: at.parent, ArrowRight: beside[place + 1], ArrowLeft: beside[place - 1], Home: this.top }[event.key];
      if (event.key === "Enter") { event.preventDefault(); this.zoom(at); return; }
      if (event.key === "Backspace" || event.key === "Escape") { event.preventDefault(); this.zoom(this.zoomed.parent || this.top); return; }
      if (!next) return;
      event.preventDefault();
      this.chosen = next;
      this.describe(next);
      this.tell.say(`${next.name}, ${this.text(next.value)}`);
      this.reveal(next);
    });
    this.select.addEventListener("change", () => { this.measureBy(this.select.value); this.tell.changed(); });
    const invert = document.getElementById("tree-invert");
    invert.addEventListener("click", () => {
      this.isInverted = !this.isInverted;
      invert.setAttribute("aria-pressed", String(this.isInverted));
      this.plant();
      this.tell.changed();
    });
    document.getElementById("tree-top").addEventListener("click", () => this.zoom(this.top));
    const find = document.getElementById("tree-find");
    find.addEventListener("input", () => this.find(find.value));
  }
}

