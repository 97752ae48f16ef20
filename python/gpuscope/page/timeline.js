// The timeline: lanes of events over one axis of time, with zooming, selection and keys.

import { countText, matcher, shareText, timeText, valueText } from "./units.js";
import { element, listOf, showLegend } from "./elements.js";
import { colors, whenThemeChanges } from "./theme.js";
import { Axis, momentText } from "./axis.js";
import { firstNotBefore, together } from "./lanes.js";
import { cut, drawCurve, drawLane, sized, zoomOf } from "./pen.js";

const HEIGHTS = { regions: 17, functions: 15, samples: 15, calls: 13, stream: 20, idle: 13 };
const TITLE = 19, AXIS = 22, STEPS = 16, CURVE = 42, GAP = 3;
const SLACK = 3; // pixels around an event that still select it
const FADED = 0.16;
const MOST_CURVES = 12; // with values in the details of an event

/** Makes the timeline of a model: its groups of lanes, steps and curves; `tell` hears of what is chosen and shown. */
export class Timeline {
  constructor(model, tell) {
    this.model = model;
    this.tell = tell;
    this.axis = new Axis(model.span);
    this.chosen = null;
    this.wanted = null; // position of the selected event, also while the model lacks it
    this.pointer = null; // position on the lanes
    this.measured = null;
    this.lit = null;
    this.closed = new Set(model.groups.filter((group) => group.kind === "functions" && group.lanes.length > 3));
    this.place = document.getElementById("lanes");
    this.canvas = this.place.querySelector("canvas");
    this.spacer = this.place.querySelector(".spacer");
    this.map = document.getElementById("minimap");
    this.details = document.getElementById("details");
    this.tip = document.body.appendChild(element("div", { className: "tip", hidden: true }));
    this.look = {
      slot: (thing) => model.slots[thing],
      name: (thing) => model.nameOf(thing),
      alpha: (thing) => (this.lit && !this.lit[thing] ? FADED : 1),
    };
    this.layout();
    this.listen();
    whenThemeChanges(() => this.draw());
    new ResizeObserver(() => { this.layout(); this.update(); }).observe(this.place);
    this.describe();
    showLegend(document.getElementById("colors"), model.legend, model.categories);
  }

  // -- layout ------------------------------------------------------------------------------------------------------

  layout() {
    this.items = [];
    let y = AXIS + (this.model.steps ? STEPS : 0);
    this.head = y;
    for (const group of this.model.groups) {
      this.items.push({ group, y, height: TITLE });
      y += TITLE;
      if (this.closed.has(group)) continue;
      for (const lane of group.lanes) {
        const height = HEIGHTS[group.kind];
        this.items.push({ lane, group, y, height });
        y += height + 1;
      }
      y += GAP;
    }
    for (const curve of this.model.curves) {
      this.items.push({ curve, y, height: CURVE });
      y += CURVE + GAP;
    }
    this.tall = y + 4;
    this.place.style.height = `${Math.max(this.tall + 2, 120) * zoomOf()}px`; // up to the style sheet's height
  }

  update() {
    if (this.isWanted) return;
    this.isWanted = true;
    requestAnimationFrame(() => { this.isWanted = false; this.draw(); });
  }

  show(from, to, isTold = true) {
    this.axis.show(from, to);
    this.place.dataset.view = `${Math.round(this.axis.from)}-${Math.round(this.axis.to)}`;
    this.update();
    if (isTold) this.tell.view(this.axis);
  }

  get ns() { return this.model.tick; }

  // In pixels of the drawing.
  get width() { return this.place.clientWidth / zoomOf(); }
  get high() { return this.place.clientHeight / zoomOf(); }
  get top() { return this.place.scrollTop / zoomOf(); }

  // -- drawing -----------------------------------------------------------------------------------------------------

  draw() {
    const began = performance.now();
    const { width, high, top } = this;
    this.axis.width = width;
    this.spacer.style.height = `${Math.max(0, this.tall - high) * zoomOf()}px`;
    const pen = sized(this.canvas, width, high);
    const bottom = top + high;
    this.drawGrid(pen);
    for (const item of this.items) {
      if (item.y + item.height < top + this.head || item.y > bottom) continue;
      const y = item.y - top;
      if (item.curve) this.drawCurveOf(pen, item, y);
      else if (item.lane) this.drawLaneOf(pen, item, y);
      else this.drawTitle(pen, item, y);
    }
    this.drawLink(pen, top);
    this.drawMeasure(pen);
    this.drawTop(pen);
    this.drawMap();
    this.frame = performance.now() - began;
    document.documentElement.dataset.frame = this.frame.toFixed(1);
  }

  drawGrid(pen) {
    pen.strokeStyle = colors.line;
    pen.globalAlpha = 0.6;
    pen.beginPath();
    for (const ns of this.axis.marks(90, this.ns).times) {
      const x = Math.round(this.axis.x(ns / this.ns)) + 0.5;
      pen.moveTo(x, AXIS);
      pen.lineTo(x, this.high);
    }
    pen.stroke();
    pen.globalAlpha = 1;
  }

  drawTop(pen) {
    const { width } = this.axis;
    pen.fillStyle = colors.paper;
    pen.fillRect(0, 0, width, this.head);
    pen.fillStyle = colors.faint;
    const { apart, times } = this.axis.marks(110, this.ns);
    for (const ns of times) {
      const x = this.axis.x(ns / this.ns);
      pen.textAlign = x < 30 ? "left" : x > width - 34 ? "right" : "center";
      pen.fillText(momentText(ns, apart), x < 30 ? Math.max(2, x) : Math.min(x, width - 2), AXIS / 2);
    }
    pen.textAlign = "left";
    const { steps } = this.model;
    if (!steps) return;
    const first = Math.max(0, firstNotBefore(steps.starts, this.axis.from) - 1);
    let lastEdge = -10;
    for (let step = first; step < steps.starts.length && steps.starts[step] < this.axis.to; step += 1) {
      const x = this.axis.x(steps.starts[step]), end = this.axis.x(steps.starts[step] + steps.lengths[step]);
      if (end < 0) continue;
      if (end - lastEdge < 1.5) continue;
      lastEdge = end;
      pen.fillStyle = step % 2 ? colors.panel : colors.line;
      const left = Math.max(0, x);
      pen.fillRect(left, AXIS, Math.min(end, width) - left, STEPS - 2);
      const text = cut(`step ${step + 1} · ${timeText(steps.lengths[step] * this.ns)}`, Math.min(end, width) - left - 6);
      pen.fillStyle = colors.ink;
      if (text.length > 5) pen.fillText(text, left + 4, AXIS + STEPS / 2 - 0.5);
    }
    pen.fillStyle = colors.line;
    pen.fillRect(0, this.head - 1, width, 1);
  }

  drawTitle(pen, item, y) {
    pen.fillStyle = colors.panel;
    pen.fillRect(0, y, this.axis.width, TITLE - 2);
    pen.fillStyle = colors.faint;
    const mark = this.closed.has(item.group) ? "▸" : "▾";
    const { lanes } = item.group, count = lanes.reduce((sum, lane) => sum + lane.total, 0);
    const isCut = lanes.some((lane) => lane.isPart) && !this.model.isWholeIn(this.axis.from, this.axis.to);
    const more = lanes.some((lane) => !lane.isReady) ? "  ·  reading …" : isCut ? "  ·  here in sums; one by one where the map is underlined" : "";
    const text = `${mark} ${this.model.strings[item.group.title]}  ·  ${countText(count)}${more}`;
    pen.fillText(cut(text, this.axis.width - 8), 5, y + TITLE / 2 - 0.5);
  }

  drawLaneOf(pen, { lane, group, height }, y) {
    if (!lane.isReady && !lane.sums) return;
    drawLane(pen, lane, this.axis, y, height, this.look, this.model.windows, group.kind === "idle");
    if (this.lit && lane.isReady) this.drawLit(pen, lane, y, height);
    const { chosen } = this;
    if (chosen && chosen.lane === lane) {
      const x = this.axis.x(lane.start[chosen.place]), wide = Math.max(3, lane.length[chosen.place] * this.axis.scale);
      pen.strokeStyle = colors.ink;
      pen.lineWidth = 2;
      pen.strokeRect(x - 1, y - 0.5, wide + 1, height + 1);
      pen.lineWidth = 1;
    }
  }

  drawLit(pen, lane, y, height) {
    const { places } = this.litOf(lane);
    if (places.length === 0) return;
    pen.fillStyle = colors.focus;
    let last = -2;
    for (let at = 0; at < places.length; at += 1) {
      const place = places[at], from = lane.start[place];
      if (from > this.axis.to) break;
      if (lane.end(place) < this.axis.from) continue;
      const x = this.axis.x(from), wide = Math.max(1.5, lane.length[place] * this.axis.scale);
      if (x + wide - last < 1) continue;
      last = x + wide;
      pen.fillRect(x, y + height - 3, wide, 3);
    }
  }

  /** The places of the lit things in a lane, looked up once. */
  litOf(lane) {
    if (lane.litFor !== this.lit) {
      const places = [];
      for (let place = 0; place < lane.count; place += 1) if (this.lit[lane.thing[place]]) places.push(place);
      lane.litFor = this.lit;
      lane.litPlaces = places;
    }
    return { places: lane.litPlaces };
  }

  drawCurveOf(pen, { curve, height }, y) {
    drawCurve(pen, curve, this.axis, y + 12, height - 12);
    pen.fillStyle = colors.faint;
    pen.fillText(cut(`${curve.title}  ·  to ${valueText(curve.most, curve.unit)}`, this.axis.width - 8), 5, y + 7);
  }

  /** The way from a driver call to its work. */
  drawLink(pen, top) {
    const pair = this.chosen && this.linkOf(this.chosen);
    if (!pair) return;
    const ends = [pair.call, pair.work].map(({ lane }) => this.items.find((item) => item.lane === lane));
    if (!ends[0] || !ends[1]) return;
    const x0 = this.axis.x(pair.call.lane.end(pair.call.place)), x1 = this.axis.x(pair.work.lane.start[pair.work.place]);
    const y0 = ends[0].y - top + ends[0].height / 2, y1 = ends[1].y - top + ends[1].height / 2;
    pen.strokeStyle = colors.ink;
    pen.lineWidth = 1.5;
    pen.beginPath();
    pen.moveTo(x0, y0);
    const bend = Math.max(20, Math.abs(x1 - x0) / 2);
    pen.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
    pen.moveTo(x1 - 6, y1 - 4);
    pen.lineTo(x1, y1);
    pen.lineTo(x1 - 6, y1 + 4);
    pen.stroke();
    pen.lineWidth = 1;
  }

  drawMeasure(pen) {
    if (!this.measured) return;
    const [from, to] = this.measured, x0 = this.axis.x(from), x1 = this.axis.x(to);
    pen.globalAlpha = 0.14;
    pen.fillStyle = colors.focus;
    pen.fillRect(x0, this.head, x1 - x0, this.high);
    pen.globalAlpha = 1;
    pen.strokeStyle = colors.focus;
    pen.beginPath();
    for (const x of [x0, x1]) { pen.moveTo(x, this.head); pen.lineTo(x, this.high); }
    pen.stroke();
    const text = timeText((to - from) * this.ns), wide = text.length * 7 + 12, x = Math.min(Math.max((x0 + x1 - wide) / 2, 0), this.axis.width - wide);
    pen.fillStyle = colors.focus;
    pen.fillRect(x, this.head + 2, wide, 18);
    pen.fillStyle = colors.paper;
    pen.fillText(text, x + 6, this.head + 11);
  }

  drawMap() {
    const width = this.map.clientWidth / zoomOf(), height = this.map.clientHeight / zoomOf();
    const pen = sized(this.map, width, height);
    this.map.style.height = "";
    const whole = new Axis(this.model.span);
    whole.width = width;
    const lanes = this.model.mapped.filter((lane) => lane.isReady || lane.sums);
    const each = lanes.length ? Math.max(2, (height - 6) / lanes.length) : 0;
    lanes.forEach((lane, row) => drawLane(pen, lane, whole, 3 + row * each, each - 1, this.look, this.model.windows));
    pen.fillStyle = colors.focus;
    for (const [from, to] of this.model.windows) pen.fillRect(whole.x(from), height - 4, Math.max(2, whole.x(to) - whole.x(from)), 4);
    const x0 = whole.x(this.axis.from), x1 = Math.max(whole.x(this.axis.to), x0 + 2);
    pen.fillStyle = colors.paper;
    pen.globalAlpha = 0.65;
    pen.fillRect(0, 0, x0, height);
    pen.fillRect(x1, 0, width - x1, height);
    pen.globalAlpha = 1;
    pen.strokeStyle = colors.focus;
    pen.lineWidth = 2;
    pen.strokeRect(x0 + 1, 1, Math.max(1, x1 - x0 - 2), height - 2);
  }

  // -- selection ---------------------------------------------------------------------------------------------------

  itemAt(y) {
    const at = y + this.top;
    if (y < this.head) return null;
    return this.items.find((item) => at >= item.y && at < item.y + item.height + 1) || null;
  }

  eventAt(x, y) {
    const item = this.itemAt(y);
    if (!item || !item.lane || !item.lane.isReady) return null;
    const place = item.lane.at(this.axis.time(x), SLACK / this.axis.scale);
    return place < 0 ? null : { lane: item.lane, place };
  }

  choose(event, isTold = true) {
    this.chosen = event;
    this.wanted = event && this.model.placeOf(event);
    this.describe();
    this.update();
    if (isTold) this.tell.chosen(event);
  }

  /** Chooses the event of a place, as soon as the model has it. */
  seek(wanted) {
    this.choose(this.model.eventAt(wanted), false);
    this.wanted = wanted;
  }

  /** Shows another model with the same lanes, of which the same groups are closed and the same event is chosen. */
  use(model) {
    const { chosen, closed } = this, { groups } = this.model;
    this.model = model;
    this.closed = new Set(model.groups.filter((_, at) => closed.has(groups[at])));
    this.chosen = this.wanted && model.eventAt(this.wanted);
    if (this.chosen && !chosen) this.describe();
    this.layout();
    this.update();
  }

  /** Brings an event into view. */
  reveal({ lane, place }) {
    const start = lane.start[place], end = lane.end(place), { axis } = this;
    if (end < axis.from || start > axis.to || (end - start) * axis.scale < 3) {
      const span = Math.min(axis.span, Math.max((end - start) * 12, 200));
      this.show((start + end - span) / 2, (start + end + span) / 2);
    }
    const item = this.items.find((each) => each.lane === lane);
    if (!item) { this.closed.delete(this.model.groups.find((group) => group.lanes.includes(lane))); this.layout(); this.reveal({ lane, place }); return; }
    const { top, high } = this;
    if (item.y < top + this.head || item.y + item.height > top + high) this.place.scrollTop = (item.y - high / 2) * zoomOf();
  }

  fit() {
    if (this.measured) this.show(...this.measured);
    else if (this.chosen) {
      const start = this.chosen.lane.start[this.chosen.place], length = Math.max(this.chosen.lane.length[this.chosen.place], 4);
      this.show(start - length * 0.1, start + length * 1.1);
    } else this.show(0, this.model.span);
  }

  /** To the event before or after of the same name, in any lane of its table. */
  neighbour(direction) {
    if (!this.chosen) return;
    const { lane, place } = this.chosen, name = this.model.nameIdOf(lane.thing[place]), at = lane.start[place];
    let best = null, nearest = Infinity;
    for (const each of this.model.lanes) {
      if (each.table !== lane.table || !each.isReady) continue;
      let next = each === lane ? place + direction : direction > 0 ? firstNotBefore(each.start, at + 1e-6) : firstNotBefore(each.start, at) - 1;
      for (; next >= 0 && next < each.count; next += direction) {
        const apart = Math.abs(each.start[next] - at);
        if (apart >= nearest) break;
        if (this.model.nameIdOf(each.thing[next]) === name) { best = { lane: each, place: next }; nearest = apart; break; }
      }
    }
    if (best) { this.choose(best); this.reveal(best); }
  }

  step(direction) {
    const { steps } = this.model;
    if (!steps) return;
    const middle = (this.axis.from + this.axis.to) / 2;
    const isWhole = this.axis.span > 0.999 * this.model.span;
    const now = isWhole ? (direction > 0 ? -1 : steps.starts.length) : firstNotBefore(steps.starts, middle + 1e-6) - 1;
    const next = Math.min(Math.max(now + direction, 0), steps.starts.length - 1);
    const start = steps.starts[next], length = steps.lengths[next];
    this.show(start - length * 0.02, start + length * 1.02);
    this.tell.say(`step ${next + 1}, ${timeText(length * this.ns)}`);
  }

  light(isLit) {
    this.lit = isLit;
    this.update();
  }

  /** Lights everything whose name matches, and says how many there are. */
  find(query) {
    const found = document.getElementById("found");
    const matches = matcher(query);
    if (query.trim() === "" || !matches) {
      this.light(null);
      found.textContent = matches ? "" : "no regex";
      return;
    }
    const isFound = this.model.strings.map(matches), isLit = Uint8Array.from(this.model.names, (name, thing) => isFound[name] || isFound[this.model.rowNameIdOf(thing)]);
    this.light(isLit);
    const count = this.model.lanes.reduce((sum, lane) => sum + (lane.isReady ? this.litOf(lane).places.length : 0), 0);
    found.textContent = `${countText(count)} found${this.model.windows.length ? " of those that are here one by one" : ""}`;
  }

  /** To the first found event behind the view, and then to the next. */
  nextFound(direction) {
    if (!this.lit) return;
    const at = this.chosen ? this.chosen.lane.start[this.chosen.place] : this.axis.from - 1;
    let best = null, nearest = Infinity;
    for (const lane of this.model.lanes) {
      if (!lane.isReady) continue;
      for (const place of this.litOf(lane).places) {
        const apart = (lane.start[place] - at) * direction;
        if (apart > 0 && apart < nearest) { nearest = apart; best = { lane, place }; }
      }
    }
    if (best) { this.choose(best); this.reveal(best); }
  }

  // -- in words ----------------------------------------------------------------------------------------------------

  /** The call and the work that belong together, of which the event is one; null without. */
  linkOf({ lane, place }) {
    const { links } = this.model;
    if (!links) return null;
    if (lane.table === "work") {
      const call = links[lane.first + place];
      const found = call > 0 && this.model.eventOf("calls", call - 1);
      return found ? { call: found, work: { lane, place } } : null;
    }
    if (lane.table !== "calls") return null;
    const work = links.indexOf(lane.first + place + 1);
    const found = work >= 0 && this.model.eventOf("work", work);
    return found ? { call: { lane, place }, work: found } : null;
  }

  facts(event) {
    const { lane, place } = event, thing = lane.thing[place], start = lane.start[place], length = lane.length[place];
    const found = [["took", timeText(length * this.ns)], ["began at", momentText(start * this.ns, 10)]];
    const note = this.model.noteOf(thing);
    if (note) found.push([lane.table === "work" ? "launched as" : "in", note]);
    const link = this.linkOf(event);
    if (link && lane.table === "work") {
      const call = link.call.lane;
      found.push(["launched by", this.model.nameOf(call.thing[link.call.place])]);
      found.push(["waited after the call", timeText(Math.max(0, start - call.end(link.call.place)) * this.ns)]);
    } else if (link) found.push(["launched", this.model.nameOf(link.work.lane.thing[link.work.place])]);
    const path = this.model.pathOf(event);
    if (path) found.push(["in", path]);
    for (const curve of this.model.curves.slice(0, MOST_CURVES)) {
      const words = this.valueAt(curve, start).split("\n");
      if (words.length > 1) found.push([`then ${words[0]}`, words[1]]);
    }
    const row = this.model.rowOf(thing);
    if (row >= 0 && this.model.rows.p50[row]) {
      const { count, p50, p95 } = this.model.rows;
      found.push(["of its name", `${countText(count[row])}, p50 ${timeText(p50[row])}, p95 ${timeText(p95[row])}`]);
    }
    return found;
  }

  describe() {
    const { details } = this;
    const tell = (title, facts) => details.replaceChildren(element("h3", { textContent: title }), listOf(facts));
    if (this.measured) tell(`Measured: ${timeText((this.measured[1] - this.measured[0]) * this.ns)}`, this.sumsOf(...this.measured));
    else if (this.chosen) {
      const thing = this.chosen.lane.thing[this.chosen.place], facts = this.facts(this.chosen);
      tell(this.model.fullNameOf(thing), facts);
      this.tell.say(`${this.model.nameOf(thing)}, ${facts[0][1]}`);
    } else details.replaceChildren(element("p", { textContent: "Nothing is chosen. Click an event, or move with the keys." }));
  }

  sumsOf(from, to) {
    const found = [], isWhole = this.model.isWholeIn(from, to);
    for (const group of this.model.groups) {
      if (group.kind !== "stream") continue;
      const inSums = isWhole ? [] : group.lanes.filter((lane) => lane.isPart);
      const parts = [together(group.lanes.filter((lane) => lane.isReady && !inSums.includes(lane)), from, to), ...inSums.map((lane) => lane.about(from, to))];
      const sum = (key) => parts.reduce((total, part) => total + part[key], 0), about = inSums.length ? "about " : "";
      found.push([this.model.strings[group.title], `${about}${countText(Math.round(sum("count")))} events, busy ${about}${shareText(Math.min(1, sum("filled") / Math.max(1, to - from)))}`]);
    }
    return found;
  }

  // -- pointer and keys --------------------------------------------------------------------------------------------

  listen() {
    const { place } = this;
    const inside = (event) => { const box = place.getBoundingClientRect(); return [(event.clientX - box.left) / zoomOf(), (event.clientY - box.top) / zoomOf()]; };
    let drag = null, scrolled = 0;
    addEventListener("scroll", () => { scrolled = performance.now(); }, { passive: true });
    place.addEventListener("scroll", () => this.update());
    place.addEventListener("wheel", (event) => {
      if (performance.now() - scrolled < 250 || event.ctrlKey) return; // the page is being scrolled past
      event.preventDefault();
      if (event.shiftKey) { place.scrollTop += event.deltaY || event.deltaX; return; }
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) { this.axis.move(event.deltaX / this.axis.scale); this.show(this.axis.from, this.axis.to); return; }
      this.axis.zoom(Math.exp(Math.min(Math.max(event.deltaY, -120), 120) * 0.0022), this.axis.time(inside(event)[0]));
      this.show(this.axis.from, this.axis.to);
    }, { passive: false });
    place.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      const [x, y] = inside(event);
      if (x > this.width) return; // the scroll bar
      drag = { x, y, moved: false, measures: event.shiftKey, from: this.axis.from, to: this.axis.to, top: place.scrollTop, time: this.axis.time(x) };
      try { place.setPointerCapture(event.pointerId); } catch { /* a made-up pointer */ }
    });
    place.addEventListener("pointermove", (event) => {
      const [x, y] = inside(event);
      this.pointer = x;
      if (!drag) { this.hover(x, y, event); return; }
      drag.moved = drag.moved || Math.hypot(x - drag.x, y - drag.y) > 4;
      if (!drag.moved) return;
      this.tip.hidden = true;
      if (drag.measures) {
        const now = this.axis.time(x);
        this.measured = [Math.max(0, Math.min(drag.time, now)), Math.min(this.model.span, Math.max(drag.time, now))];
        this.describe();
        this.update();
        return;
      }
      const by = (drag.x - x) * ((drag.to - drag.from) / this.axis.width);
      this.show(drag.from + by, drag.to + by);
      if (event.pointerType === "mouse") place.scrollTop = drag.top + (drag.y - y) * zoomOf();
    });
    const drop = (event) => {
      const [x, y] = inside(event), done = drag;
      drag = null;
      if (!done || done.moved) return;
      const item = this.itemAt(y);
      if (item && item.group && !item.lane) { this.toggle(item.group); return; }
      this.measured = null;
      this.choose(this.eventAt(x, y));
    };
    place.addEventListener("pointerup", drop);
    place.addEventListener("pointercancel", () => { drag = null; });
    place.addEventListener("pointerleave", () => { this.tip.hidden = true; this.pointer = null; });
    place.addEventListener("dblclick", () => this.fit());
    const moved = (event) => {
      const box = this.map.getBoundingClientRect(), middle = ((event.clientX - box.left) / box.width) * this.model.span;
      this.show(middle - this.axis.span / 2, middle + this.axis.span / 2);
    };
    this.map.addEventListener("pointerdown", (event) => { try { this.map.setPointerCapture(event.pointerId); } catch { /* made up */ } moved(event); });
    this.map.addEventListener("pointermove", (event) => { if (event.buttons & 1) moved(event); });
    place.addEventListener("keydown", (event) => this.key(event));
    const click = (id, act) => document.getElementById(id).addEventListener("click", act);
    click("zoom-in", () => this.zoom(0.5));
    click("zoom-out", () => this.zoom(2));
    click("whole", () => this.show(0, this.model.span));
    for (const id of ["step-before", "step-after"]) document.getElementById(id).hidden = !this.model.steps;
    click("step-before", () => this.step(-1));
    click("step-after", () => this.step(1));
    const find = document.getElementById("find");
    find.addEventListener("input", () => this.find(find.value));
    find.addEventListener("keydown", (event) => {
      if (event.key === "Enter") { event.preventDefault(); this.nextFound(event.shiftKey ? -1 : 1); }
      if (event.key === "Escape") { find.value = ""; this.find(""); this.place.focus(); }
    });
  }

  zoom(factor) {
    const { chosen, axis } = this;
    const at = this.pointer !== null ? axis.time(this.pointer) : chosen && chosen.lane.start[chosen.place];
    axis.zoom(factor, at !== null && at >= axis.from && at <= axis.to ? at : undefined);
    this.show(axis.from, axis.to);
  }

  toggle(group) {
    if (!this.closed.delete(group)) this.closed.add(group);
    this.layout();
    this.update();
  }

  hover(x, y, event) {
    const found = this.eventAt(x, y), item = this.itemAt(y);
    const words = found ? [this.model.nameOf(found.lane.thing[found.place]), timeText(found.lane.length[found.place] * this.ns), this.model.noteOf(found.lane.thing[found.place])].filter(Boolean).join("\n")
      : item && item.curve ? this.valueAt(item.curve, this.axis.time(x)) : "";
    this.tip.hidden = words === "";
    if (words === "") return;
    this.tip.textContent = words.length > 600 ? `${words.slice(0, 600)}…` : words;
    const left = Math.min(event.clientX + 14, innerWidth - this.tip.offsetWidth - 8), above = event.clientY + 18 + this.tip.offsetHeight > innerHeight;
    this.tip.style.transform = `translate(${Math.max(4, left)}px, ${above ? event.clientY - this.tip.offsetHeight - 10 : event.clientY + 18}px)`;
  }

  /** What a curve says of a moment; where it has the ends of ranges, both. */
  valueAt({ title, unit, ranges, ticks, values }, moment) {
    const place = firstNotBefore(ticks, moment + 1) - 1;
    if (place < 0 || values[place] === null) return "";
    const ends = ranges ? [values[place | 1], values[place & ~1]] : [values[place]];
    return `${title}\n${[...new Set(ends.map((value) => valueText(value, unit)))].join(" to ")}`;
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const by = this.axis.span * (event.shiftKey ? 0.5 : 0.15);
    const move = (time) => this.show(this.axis.from + time, this.axis.to + time);
    const act = {
      ArrowLeft: () => move(-by), a: () => move(-by), A: () => move(-by),
      ArrowRight: () => move(by), d: () => move(by), D: () => move(by),
      ArrowUp: () => { this.place.scrollTop -= 40; },
      ArrowDown: () => { this.place.scrollTop += 40; },
      Home: () => this.show(0, this.axis.span),
      End: () => this.show(this.model.span - this.axis.span, this.model.span),
      "+": () => this.zoom(0.6), "=": () => this.zoom(0.6), w: () => this.zoom(0.6), "-": () => this.zoom(1 / 0.6), s: () => this.zoom(1 / 0.6),
      f: () => this.fit(), 0: () => this.show(0, this.model.span),
      "[": () => this.neighbour(-1), "]": () => this.neighbour(1),
      ".": () => this.step(1), ",": () => this.step(-1), n: () => this.nextFound(1), N: () => this.nextFound(-1),
      Enter: () => this.chooseNear(),
      Escape: () => { this.measured = null; this.choose(null); },
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  /** Chooses the first event in view of the first stream, or of the first lane that has one. */
  chooseNear() {
    const lanes = [...this.model.mapped, ...this.model.lanes];
    for (const lane of lanes) {
      if (!lane.isReady) continue;
      const [first, last] = lane.inside(this.axis.from, this.axis.to);
      if (last > first) { this.choose({ lane, place: first }); this.reveal({ lane, place: first }); return; }
    }
  }
}
