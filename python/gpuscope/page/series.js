// Curves of a figure: lines with intervals, points and marks, on linear or logarithmic axes, with zooming.

import { countText, rounded, timeText } from "./units.js";
import { colors, whenThemeChanges } from "./theme.js";
import { momentText } from "./axis.js";
import { sized, zoomOf } from "./pen.js";

const EDGES = { left: 66, right: 14, top: 18, bottom: 42 };
const BESIDE = 0.2; // of the width, for the histogram of values
const BINS = 60;
const NEAR = 40; // pixels from the pointer within which a point is selected
const SYMBOL = 4.2;
const BEYOND = 5; // times the range of all values: limit of panning to either side
const DECADES = [-323, 308]; // that numbers have
const DASHES = { solid: [], dash: [7, 5], dot: [2, 4] };

const bare = (text) => text.replace(/\.0+(?=\D|$)|(\.\d*?)0+(?=\D|$)/, "$1");

/** A value of a kind in words: "time" in seconds, "times" a ratio, "count", or "rate" in what `unit` says. */
export function kindText({ kind, unit = "" }, value) {
  if (value === null || !Number.isFinite(value)) return "unknown";
  if (kind === "time") return timeText(value * 1e9);
  if (kind === "times") return `${value >= 100 ? countText(Math.round(value)) : value.toPrecision(3)}×`;
  if (kind === "rate") return `${rateText(value, unit)}/s`;
  return Number.isInteger(value) || Math.abs(value) >= 1000 ? countText(Math.round(value)) : rounded(value);
}

const rateText = (value, unit) => {
  const [scale, letter] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([each]) => Math.abs(value) >= 0.9995 * each) || [1, ""];
  return `${rounded(value / scale)} ${letter}${unit.length > 4 && letter ? " " : ""}${unit}`;
};

/** One axis: values, of which some are shown, on a stretch of pixels. */
class Scale {
  constructor(facts) { Object.assign(this, { facts, log: Boolean(facts.log), from: 0, to: 1, low: 0, high: 1, bounds: [0, 1] }); }

  put(value) { return this.log ? Math.log10(value) : value; }
  take(place) { return this.log ? 10 ** place : place; }
  holds(value) { return value !== null && Number.isFinite(value) && (!this.log || value > 0); }
  /** Where a value lies in pixels. */
  at(value) { return this.low + ((this.put(value) - this.from) / (this.to - this.from)) * (this.high - this.low); }
  /** The place, of which `take` makes a value, at a pixel. */
  placeAt(pixel) { return this.from + ((pixel - this.low) / (this.high - this.low)) * (this.to - this.from); }

  /** Shows a stretch of all places, which say how far others may reach. */
  fit(from, to, [low, high]) {
    const first = Math.min(from, low), last = Math.max(to, high), beyond = BEYOND * this.spanOf(first, last);
    const [least, most] = this.log ? DECADES : [-Infinity, Infinity];
    this.bounds = [Math.max(first - beyond, least), Math.min(last + beyond, most)];
    this.show(from, to);
  }

  /** Shows a stretch, as far as it lies within the bounds. */
  show(from, to) {
    const [least, most] = this.bounds, span = Math.min(this.spanOf(from, to), most - least);
    this.from = Math.min(Math.max(from, least), most - span);
    this.to = this.from + span;
  }

  spanOf(from, to) { return Math.max(to - from, 1e-9 * Math.max(Math.abs(from), Math.abs(to), 1e-12)); }

  /** Marks with their words, so far apart that these have room. */
  marks(room) {
    const pixels = Math.abs(this.high - this.low), fits = Math.max(1, pixels / room);
    const { ticks } = this.facts;
    if (this.log && ticks) return this.thinned(ticks.filter((value) => this.put(value) >= this.from - 1e-9 && this.put(value) <= this.to + 1e-9).map((value) => [value, kindText(this.facts, value)]), room);
    if (this.log && this.to - this.from > 0.9) {
      const found = [];
      const steps = (this.to - this.from) * 3 <= fits ? [1, 2, 5] : [1];
      const every = Math.max(1, Math.ceil((this.to - this.from) / fits));
      for (let power = Math.floor(this.from / every) * every; power <= this.to; power += every) {
        for (const step of steps) {
          const value = step * 10 ** power, place = Math.log10(value);
          if (place >= this.from - 1e-9 && place <= this.to + 1e-9) found.push([value, bare(kindText(this.facts, value))]);
        }
      }
      return found;
    }
    const [low, high] = [this.take(this.from), this.take(this.to)];
    const least = (high - low) / fits, power = 10 ** Math.floor(Math.log10(least));
    const apart = power * [1, 2, 5, 10].find((step) => step * power >= least * 0.999);
    const found = [];
    for (let count = Math.ceil(low / apart - 1e-9); count * apart <= high * (1 + 1e-12); count += 1) found.push([count * apart, this.words(count * apart, apart, high)]);
    return found;
  }

  words(value, apart, most) {
    const { kind, unit = "" } = this.facts;
    if (value === 0) return "0";
    if (kind === "time") return momentText(value * 1e9, apart * 1e9);
    const [scale, letter] = kind === "rate" ? [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([each]) => most >= each) || [1, ""] : [1, ""];
    const digits = Math.min(12, Math.max(0, -Math.floor(Math.log10(apart / scale) + 1e-9)));
    const text = (value / scale).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
    return kind === "times" ? `${text}×` : kind === "rate" ? `${text} ${letter}${unit}/s` : text;
  }

  thinned(marks, room) {
    let last = -Infinity;
    return marks.filter(([value]) => {
      if (Math.abs(this.at(value) - last) < room) return false;
      last = this.at(value);
      return true;
    });
  }
}

export class Chart {
  /** `place` holds a canvas; `tell.say` speaks, `tell.drawn` hears of every drawing. */
  constructor(place, tell) {
    Object.assign(this, { place, tell, chosen: null, hidden: new Set(), isWhole: false, drag: null });
    this.canvas = place.querySelector("canvas");
    this.tip = place.appendChild(Object.assign(document.createElement("div"), { className: "tip", hidden: true }));
    this.legend = document.getElementById("legend");
    this.listen();
    whenThemeChanges(() => this.draw());
    new ResizeObserver(() => this.draw()).observe(place);
  }

  /**
   * Shows a figure: { x, y, lines, marks, bars }, where an axis is { title, kind, unit, log, ticks, shown } and a line
   * { name, slot, symbol, dash, joined, x, y, low, high }.
   */
  show(figure) {
    this.figure = figure;
    this.chosen = null;
    this.tip.hidden = true;
    this.x = new Scale(figure.x);
    this.y = new Scale(figure.y);
    this.fit();
    this.makeLegend();
    this.draw();
  }

  get lines() { return this.figure.lines.filter(({ name }) => !this.hidden.has(name)); }

  /** Shows all of x, and of y what matters: an outlier, or an end of an interval, flattens nothing. */
  fit(all = this.isWhole) {
    this.isWhole = all;
    const { x, y, figure } = this;
    const reach = (scale, lists) => {
      let low = Infinity, high = -Infinity;
      for (const list of lists) for (const value of list) if (scale.holds(value)) { low = Math.min(low, scale.put(value)); high = Math.max(high, scale.put(value)); }
      return low > high ? (scale.log ? [0, 1] : [0, 1]) : [low, high];
    };
    const shownLines = this.lines;
    const [left, right] = reach(x, shownLines.map((line) => line.x)), every = reach(y, shownLines.flatMap((line) => [line.y, line.low || [], line.high || []]));
    const aside = (right - left || 0.5) * 0.04;
    x.fit(!x.log && left >= 0 && left < right * 0.3 ? 0 : left - aside, right + aside, [left, right]);
    if (figure.y.shown && !all && figure.y.shown.every((value) => y.holds(value))) { y.fit(...figure.y.shown.map((value) => y.put(value)), every); return; }
    const [low, high] = all ? every : reach(y, shownLines.map((line) => line.y)), beside = (high - low || Math.abs(high) || 1) * 0.07;
    y.fit(!y.log && low >= 0 && !figure.y.shown ? 0 : low - beside, high + beside, every);
  }

  makeLegend() {
    if (!this.legend) return;
    this.legend.replaceChildren(...this.figure.lines.map((line) => {
      const button = Object.assign(document.createElement("button"), { type: "button", title: "show or hide" });
      button.setAttribute("aria-pressed", String(!this.hidden.has(line.name)));
      const sample = document.createElement("canvas");
      sample.className = "sample";
      button.append(sample, line.name);
      button.addEventListener("click", () => {
        if (!this.hidden.delete(line.name)) this.hidden.add(line.name);
        this.chosen = null;
        this.tip.hidden = true;
        button.setAttribute("aria-pressed", String(!this.hidden.has(line.name)));
        this.draw();
      });
      return button;
    }));
  }

  // -- drawing -----------------------------------------------------------------------------------------------------

  draw() {
    const { figure, place, x, y } = this, width = place.clientWidth / zoomOf(), high = place.clientHeight / zoomOf();
    if (!figure || !width) return;
    const pen = sized(this.canvas, width, high);
    const beside = figure.bars ? width * BESIDE : 0;
    Object.assign(x, { low: EDGES.left, high: Math.max(EDGES.left + 20, width - EDGES.right - beside) });
    Object.assign(y, { low: high - EDGES.bottom, high: EDGES.top });
    this.drawAxes(pen, width, high);
    pen.save();
    pen.beginPath();
    pen.rect(x.low, y.high, x.high - x.low, y.low - y.high);
    pen.clip();
    for (const mark of figure.marks || []) this.drawField(pen, mark);
    for (const line of this.lines) this.drawBands(pen, line);
    for (const line of this.lines) this.drawLine(pen, line);
    for (const mark of figure.marks || []) this.drawMark(pen, mark);
    pen.restore();
    this.drawLabels(pen);
    const out = this.drawBeyond(pen);
    if (figure.bars) this.drawBars(pen, width);
    if (this.chosen && this.isShown(this.chosen)) this.drawChosen(pen);
    if (this.drag && this.drag.moved && !this.drag.pans) {
      pen.fillStyle = colors.focus;
      pen.globalAlpha = 0.18;
      pen.fillRect(this.drag.x, this.drag.y, this.drag.nowX - this.drag.x, this.drag.nowY - this.drag.y);
      pen.globalAlpha = 1;
    }
    this.drawLegend();
    place.dataset.range = [x.take(x.from), x.take(x.to), y.take(y.from), y.take(y.to)].map((value) => value.toPrecision(6)).join(" ");
    place.dataset.beyond = out;
    this.tell.drawn();
  }

  drawAxes(pen, width, high) {
    const { x, y, figure } = this;
    pen.strokeStyle = colors.line;
    pen.fillStyle = colors.faint;
    pen.textAlign = "right";
    for (const [value, words] of y.marks(26)) {
      const at = Math.round(y.at(value)) + 0.5;
      pen.beginPath();
      pen.moveTo(x.low, at);
      pen.lineTo(x.high, at);
      pen.stroke();
      pen.fillText(words, x.low - 6, at, x.low - 8);
    }
    pen.textAlign = "center";
    for (const [value, words] of x.marks(56)) {
      const at = Math.round(x.at(value)) + 0.5;
      pen.globalAlpha = 0.6;
      pen.beginPath();
      pen.moveTo(at, y.high);
      pen.lineTo(at, y.low);
      pen.stroke();
      pen.globalAlpha = 1;
      pen.fillText(words, at, y.low + 11);
    }
    pen.fillStyle = colors.ink;
    pen.fillText(figure.x.title, (x.low + x.high) / 2, high - 9, x.high - x.low);
    pen.textAlign = "left";
    pen.fillText(figure.y.title, 2, 7, width - 4);
  }

  /** The points of a line that the axes hold, in pixels. */
  points(line) {
    const found = [];
    line.x.forEach((value, place) => {
      if (this.x.holds(value) && this.y.holds(line.y[place])) found.push({ line, place, x: this.x.at(value), y: this.y.at(line.y[place]) });
    });
    return found;
  }

  hasInterval(line, place) {
    return Boolean(line.low) && this.y.holds(line.low[place]) && this.y.holds(line.high[place]);
  }

  /** Intervals of neighbours as bands; none crosses a point that has no interval. */
  drawBands(pen, line) {
    if (!line.joined || !line.low) return;
    pen.fillStyle = colors.slots[line.slot];
    pen.globalAlpha = 0.22;
    let run = [];
    const flush = () => {
      if (run.length > 1) {
        pen.beginPath();
        run.forEach(({ x, place }, at) => (at ? pen.lineTo(x, this.y.at(line.high[place])) : pen.moveTo(x, this.y.at(line.high[place]))));
        for (const { x, place } of run.slice().reverse()) pen.lineTo(x, this.y.at(line.low[place]));
        pen.fill();
      }
      run = [];
    };
    for (const point of this.points(line)) if (this.hasInterval(line, point.place)) run.push(point); else flush();
    flush();
    pen.globalAlpha = 1;
  }

  drawLine(pen, line) {
    const points = this.points(line);
    pen.strokeStyle = pen.fillStyle = colors.slots[line.slot];
    if (line.joined) {
      pen.lineWidth = 2;
      pen.setLineDash(DASHES[line.dash] || []);
      pen.beginPath();
      points.forEach(({ x, y }, at) => (at ? pen.lineTo(x, y) : pen.moveTo(x, y)));
      pen.stroke();
      pen.setLineDash([]);
      pen.lineWidth = 1.4;
      for (const { x, place } of points) {
        if (!this.hasInterval(line, place)) continue;
        const low = this.y.at(line.low[place]), high = this.y.at(line.high[place]);
        pen.beginPath();
        for (const end of [low, high]) { pen.moveTo(x - 4, end); pen.lineTo(x + 4, end); }
        pen.moveTo(x, low);
        pen.lineTo(x, high);
        pen.stroke();
      }
    }
    for (const { x, y, place } of points) symbol(pen, line.symbol, x, y, line.joined ? SYMBOL : SYMBOL * 0.62, line.joined && !this.hasInterval(line, place));
    pen.lineWidth = 1;
  }

  drawField(pen, { axis, low, high, slot }) {
    const scale = this[axis];
    if (!scale.holds(low) || !scale.holds(high)) return;
    const [from, to] = [scale.at(low), scale.at(high)];
    pen.fillStyle = colors.slots[slot];
    pen.globalAlpha = 0.15;
    if (axis === "x") pen.fillRect(from, this.y.high, Math.max(to - from, 1), this.y.low - this.y.high); else pen.fillRect(this.x.low, to, this.x.high - this.x.low, Math.max(from - to, 1));
    pen.globalAlpha = 1;
  }

  drawMark(pen, { axis, value, slot }) {
    if (!this[axis].holds(value)) return;
    const at = this[axis].at(value);
    pen.strokeStyle = slot === undefined ? colors.faint : colors.slots[slot];
    pen.lineWidth = 1.5;
    pen.setLineDash(slot === undefined ? [] : DASHES.dash);
    pen.beginPath();
    if (axis === "x") { pen.moveTo(at, this.y.high); pen.lineTo(at, this.y.low); } else { pen.moveTo(this.x.low, at); pen.lineTo(this.x.high, at); }
    pen.stroke();
    pen.setLineDash([]);
    pen.lineWidth = 1;
  }

  drawLabels(pen) {
    let row = 0;
    for (const { axis, value, label } of this.figure.marks || []) {
      if (!label || !this[axis].holds(value)) continue;
      const at = this[axis].at(value);
      if (axis === "x" && (at < this.x.low || at > this.x.high)) continue;
      if (axis === "y" && (at < this.y.high || at > this.y.low)) continue;
      const wide = pen.measureText(label).width + 8;
      const left = axis === "x" ? (at + 4 + wide > this.x.high ? at - 4 - wide : at + 4) : this.x.low + 4;
      const middle = axis === "x" ? this.y.high + 10 + 17 * row : at - 9;
      pen.fillStyle = colors.paper;
      pen.globalAlpha = 0.85;
      pen.fillRect(left, middle - 8, wide, 16);
      pen.globalAlpha = 1;
      pen.fillStyle = colors.ink;
      pen.textAlign = "left";
      pen.fillText(label, left + 4, middle);
      row += 1;
    }
  }

  /** Of the points above and below what is shown, a mark at the edge, and how many they are. */
  drawBeyond(pen) {
    const { x, y } = this;
    let above = 0, below = 0, most = -Infinity;
    for (const line of this.lines) {
      pen.fillStyle = colors.slots[line.slot];
      for (const point of this.points(line)) {
        if (point.x < x.low - 1 || point.x > x.high + 1 || (point.y >= y.high - 1 && point.y <= y.low + 1)) continue;
        const isAbove = point.y < y.high, edge = isAbove ? y.high : y.low, tip = isAbove ? 7 : -7;
        if (isAbove) { above += 1; most = Math.max(most, line.y[point.place]); } else below += 1;
        pen.beginPath();
        pen.moveTo(point.x, edge);
        pen.lineTo(point.x - 4, edge + tip);
        pen.lineTo(point.x + 4, edge + tip);
        pen.fill();
      }
    }
    if (above + below) {
      pen.fillStyle = colors.ink;
      pen.textAlign = "right";
      const words = [above && `${countText(above)} above, up to ${kindText(this.figure.y, most)}`, below && `${countText(below)} below`].filter(Boolean).join(", ");
      pen.fillText(words, x.high, 7, x.high - x.low - 90);
    }
    return above + below;
  }

  /** How often which value came, beside the points. */
  drawBars(pen, width) {
    const { y } = this, left = this.x.high + 8, room = width - EDGES.right - left;
    const counts = this.lines.map((line) => {
      const bins = new Uint32Array(BINS);
      for (const value of line.y) {
        if (!y.holds(value)) continue;
        const bin = Math.floor(((y.put(value) - y.from) / (y.to - y.from)) * BINS);
        if (bin >= 0 && bin < BINS) bins[bin] += 1;
      }
      return [line, bins];
    });
    let most = 1;
    for (let bin = 0; bin < BINS; bin += 1) most = Math.max(most, counts.reduce((sum, [, bins]) => sum + bins[bin], 0));
    const tall = (y.low - y.high) / BINS;
    for (let bin = 0; bin < BINS; bin += 1) {
      let from = left;
      for (const [line, bins] of counts) {
        const wide = (bins[bin] / most) * room;
        pen.fillStyle = colors.slots[line.slot];
        pen.fillRect(from, y.low - (bin + 1) * tall, wide, Math.max(tall - 0.6, 0.6));
        from += wide;
      }
    }
    pen.fillStyle = colors.faint;
    pen.textAlign = "left";
    pen.fillText(`how often, up to ${countText(most)}`, left, y.low + 28, room); // below the last number of the axis beside it
  }

  drawChosen(pen) {
    const { line, place } = this.chosen, x = this.x.at(line.x[place]), y = Math.min(Math.max(this.y.at(line.y[place]), this.y.high), this.y.low);
    pen.strokeStyle = colors.ink;
    pen.lineWidth = 2;
    pen.beginPath();
    pen.arc(x, y, SYMBOL + 4, 0, 7);
    pen.stroke();
    pen.lineWidth = 1;
  }

  drawLegend() {
    if (!this.legend) return;
    this.figure.lines.forEach((line, at) => {
      const sample = this.legend.children[at].firstChild, pen = sized(sample, 30, 14);
      pen.strokeStyle = pen.fillStyle = colors.slots[line.slot];
      pen.lineWidth = 2;
      pen.setLineDash(DASHES[line.dash] || []);
      if (line.joined) { pen.beginPath(); pen.moveTo(0, 7); pen.lineTo(30, 7); pen.stroke(); }
      pen.setLineDash([]);
      symbol(pen, line.symbol, 15, 7, SYMBOL, false);
    });
  }

  // -- selection ---------------------------------------------------------------------------------------------------

  nearest(x, y) {
    let best = null, nearest = NEAR;
    for (const line of this.lines) {
      for (const point of this.points(line)) {
        if (point.x < this.x.low - 2 || point.x > this.x.high + 2) continue;
        const apart = Math.hypot(point.x - x, Math.min(Math.max(point.y, this.y.high), this.y.low) - y);
        if (apart < nearest) { nearest = apart; best = point; }
      }
    }
    return best;
  }

  isShown({ line, place }) {
    const x = this.x.at(line.x[place]);
    return x > this.x.low - 2 && x < this.x.high + 2;
  }

  /** What is known of a point, a line a fact. */
  wordsOf({ line, place }) {
    const { x, y } = this.figure;
    const words = [`${line.name}, ${x.title} ${kindText(x, line.x[place])}`, kindText(y, line.y[place])];
    if (line.low) words.push(this.hasInterval(line, place) ? `95 %: ${kindText(y, line.low[place])} to ${kindText(y, line.high[place])}` : "too few samples for an interval");
    return words.join("\n");
  }

  choose(point, isSaid = false) {
    this.chosen = point;
    this.tip.hidden = point === null || !this.isShown(point);
    this.draw();
    if (this.tip.hidden) return;
    const words = this.wordsOf(point), zoom = zoomOf();
    this.tip.textContent = words;
    const x = this.x.at(point.line.x[point.place]) * zoom, y = Math.min(Math.max(this.y.at(point.line.y[point.place]), this.y.high), this.y.low) * zoom;
    const left = x + 14 + this.tip.offsetWidth > this.place.clientWidth ? x - 14 - this.tip.offsetWidth : x + 14;
    this.tip.style.transform = `translate(${Math.max(0, left)}px, ${Math.max(0, Math.min(y - this.tip.offsetHeight - 8, this.place.clientHeight - this.tip.offsetHeight))}px)`;
    if (isSaid) this.tell.say(words.replaceAll("\n", ", "));
  }

  /** To the next point of the line, or to that of another line at about the same place. */
  step(along, across) {
    const { lines } = this;
    if (!lines.length) return;
    const line = this.chosen ? this.chosen.line : lines[0];
    const points = this.points(line).sort((one, other) => one.x - other.x);
    if (!this.chosen) { if (points.length) this.choose(points[along === Infinity ? points.length - 1 : 0], true); return; }
    if (across) {
      const next = this.points(lines[(lines.indexOf(line) + across + lines.length) % lines.length]), x = this.x.at(line.x[this.chosen.place]);
      const best = next.sort((one, other) => Math.abs(one.x - x) - Math.abs(other.x - x))[0];
      if (best) this.choose(best, true);
      return;
    }
    const now = points.findIndex(({ place }) => place === this.chosen.place);
    this.choose(points[Math.min(Math.max(now + along, 0), points.length - 1)], true);
  }

  /** Zooms around a place: what is chosen, or the middle, where none is given. */
  zoom(factor, ...place) {
    const { chosen } = this, isNear = chosen && this.isShown(chosen);
    const [x, y] = place.length ? place : isNear ? [this.x.at(chosen.line.x[chosen.place]), this.y.at(chosen.line.y[chosen.place])] : [(this.x.low + this.x.high) / 2, (this.y.low + this.y.high) / 2];
    for (const [scale, pixel] of [[this.x, x], [this.y, y]]) {
      const around = scale.placeAt(pixel);
      scale.show(around - (around - scale.from) * factor, around + (scale.to - around) * factor);
    }
    this.choose(this.chosen);
  }

  whole(all = false) {
    this.fit(all);
    this.choose(this.chosen);
  }

  save(name) {
    this.canvas.toBlob((blob) => {
      const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: `${name}.png` });
      link.click();
      URL.revokeObjectURL(link.href);
    });
  }

  // -- pointer and keys --------------------------------------------------------------------------------------------

  listen() {
    const { place } = this;
    const inside = (event) => { const box = place.getBoundingClientRect(); return [(event.clientX - box.left) / zoomOf(), (event.clientY - box.top) / zoomOf()]; };
    place.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !this.figure) return;
      const [x, y] = inside(event);
      this.drag = { x, y, nowX: x, nowY: y, moved: false, pans: event.shiftKey, spans: [this.x.from, this.x.to, this.y.from, this.y.to] };
      try { place.setPointerCapture(event.pointerId); } catch { /* a made-up pointer */ }
    });
    place.addEventListener("pointermove", (event) => {
      if (!this.figure) return;
      const [x, y] = inside(event), { drag } = this;
      if (!drag) { const found = this.nearest(x, y); if (found || event.pointerType === "mouse") this.choose(found); return; }
      if (event.pointerType !== "mouse") return; // a finger scrolls the page
      Object.assign(drag, { nowX: x, nowY: y, moved: drag.moved || Math.hypot(x - drag.x, y - drag.y) > 5 });
      if (drag.pans && drag.moved) {
        const [left, right, low, high] = drag.spans;
        const byX = ((drag.x - x) / (this.x.high - this.x.low)) * (right - left), byY = ((drag.y - y) / (this.y.high - this.y.low)) * (high - low);
        this.x.show(left + byX, right + byX);
        this.y.show(low + byY, high + byY);
      }
      this.draw();
    });
    place.addEventListener("pointerup", (event) => {
      const { drag } = this;
      this.drag = null;
      if (!drag) return;
      if (!drag.moved) { this.choose(this.nearest(...inside(event)), true); return; }
      if (!drag.pans && Math.abs(drag.nowX - drag.x) > 8 && Math.abs(drag.nowY - drag.y) > 8) {
        const sides = [[this.x, [drag.x, drag.nowX]], [this.y, [drag.y, drag.nowY]]];
        for (const [scale, pixels] of sides) {
          const [from, to] = pixels.map((pixel) => scale.placeAt(pixel)).sort((one, other) => one - other);
          scale.show(from, to);
        }
      }
      this.draw();
    });
    place.addEventListener("pointercancel", () => { this.drag = null; this.draw(); });
    place.addEventListener("pointerleave", () => { if (!this.drag && document.activeElement !== place) this.choose(null); });
    place.addEventListener("dblclick", () => this.whole());
    place.addEventListener("wheel", (event) => {
      if (event.ctrlKey || document.activeElement !== place) return; // the page is scrolled past a chart that is not in use
      event.preventDefault();
      this.zoom(Math.exp(Math.min(Math.max(event.deltaY, -120), 120) * 0.0022), ...inside(event));
    }, { passive: false });
    place.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey || !this.figure) return;
      const act = {
        ArrowRight: () => this.step(event.shiftKey ? 10 : 1, 0), ArrowLeft: () => this.step(event.shiftKey ? -10 : -1, 0),
        ArrowUp: () => this.step(0, -1), ArrowDown: () => this.step(0, 1), Home: () => this.step(-Infinity, 0), End: () => this.step(Infinity, 0),
        "+": () => this.zoom(0.7), "=": () => this.zoom(0.7), "-": () => this.zoom(1 / 0.7), 0: () => this.whole(), a: () => this.whole(!this.isWhole),
        Escape: () => this.choose(null),
      }[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    });
    const click = (id, act) => document.getElementById(id)?.addEventListener("click", act);
    click("in", () => this.zoom(0.7));
    click("out", () => this.zoom(1 / 0.7));
    click("whole", () => this.whole());
    click("everything", () => this.whole(true));
    click("png", () => this.save(document.title.replace(/[^\w-]+/g, "_").slice(0, 60)));
  }
}

function symbol(pen, shape, x, y, size, isHollow) {
  pen.beginPath();
  if (shape === "square") pen.rect(x - size * 0.9, y - size * 0.9, size * 1.8, size * 1.8);
  else if (shape === "diamond") { pen.moveTo(x, y - size * 1.25); pen.lineTo(x + size * 1.25, y); pen.lineTo(x, y + size * 1.25); pen.lineTo(x - size * 1.25, y); pen.closePath(); }
  else if (shape === "cross") { pen.moveTo(x - size, y - size); pen.lineTo(x + size, y + size); pen.moveTo(x + size, y - size); pen.lineTo(x - size, y + size); pen.stroke(); return; }
  else pen.arc(x, y, size, 0, 7);
  if (isHollow) { const fill = pen.fillStyle; pen.fillStyle = colors.paper; pen.fill(); pen.fillStyle = fill; pen.stroke(); } else pen.fill();
}
