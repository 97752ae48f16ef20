// Draws events as boxes on a canvas, and those that share a pixel as one column of it.

import { colors } from "./theme.js";

const DENSE = 24000; // events of a lane in view, beyond which its sums are drawn
const PALE = 0.4; // opacity of idle time
const LETTER = 6.1; // pixels, of the font below
export const FONT = "11px system-ui, sans-serif";

/** How many CSS pixels one of a drawing is: drawings grow with the text of the page. */
export const zoomOf = () => parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;

/** Fits a canvas to its place on the page; width and height are pixels of the drawing, see `zoomOf`. */
export function sized(canvas, width, height) {
  const ratio = (devicePixelRatio || 1) * zoomOf();
  const pixels = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) [canvas.width, canvas.height] = pixels;
  canvas.style.height = `${height * zoomOf()}px`;
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.ratio = ratio; // pixels of the device in one of the drawing
  pen.clearRect(0, 0, width, height);
  pen.font = FONT;
  pen.textBaseline = "middle";
  pen.lineWidth = 1;
  return pen;
}

/** As much of a text as has room. */
export function cut(text, room) {
  const letters = Math.floor(room / LETTER);
  if (text.length <= letters) return text;
  return letters < 5 ? "" : `${text.slice(0, letters - 1)}…`;
}

/** A box of a color of the palette with its name, where there is room for some of it. */
export function box(pen, x, y, width, height, slot, name, edge = 0, isPale = false) {
  boxIn(pen, x, y, width, height, { fill: colors.slots[slot], ink: colors.inks[slot] }, name, edge, isPale);
}

/** A box of any color. */
export function boxIn(pen, x, y, width, height, { fill, ink }, name, edge = 0, isPale = false) {
  // Whole pixels of the device: a pixel shared by two boxes would be paler, like a band of idle time.
  const pixel = 1 / pen.ratio, snapped = (value) => Math.round(value * pen.ratio) * pixel;
  const left = snapped(Math.max(x, -2)), right = snapped(Math.min(x + width, edge || x + width));
  const shown = right - left;
  pen.fillStyle = fill;
  const alpha = pen.globalAlpha;
  if (isPale) pen.globalAlpha = alpha * PALE;
  pen.fillRect(left, y, Math.max(shown - (shown > 3 ? pixel : 0), pixel), height);
  pen.globalAlpha = alpha;
  if (shown < 26 || height < 11) return;
  const text = cut(name, shown - 7);
  if (text === "") return;
  pen.fillStyle = isPale ? colors.ink : ink;
  pen.fillText(text, left + 4, y + height / 2 + 0.5, shown - 6);
}

/**
 * Draws what a lane has in view. `look` says of each thing its slot and name; `isStriped` marks idle time.
 * Returns how many events were looked at.
 */
export function drawLane(pen, lane, axis, y, height, look, windows, isStriped = false) {
  const [first, last] = lane.isReady ? lane.inside(axis.from, axis.to) : [0, 0];
  const isThere = lane.isReady && (!lane.isPart || windows.some(([from, to]) => axis.from >= from && axis.to <= to));
  if (lane.sums && (!isThere || last - first > DENSE)) {
    drawSums(pen, lane, axis, y, height, look);
    return 0;
  }
  const { start, length, thing } = lane, { from, scale, width } = axis;
  let column = -1, filled = 0, best = -1, bestThing = 0;
  const flush = () => {
    if (column < 0) return;
    pen.globalAlpha = look.alpha(bestThing) * Math.min(1, 0.35 + filled) * (isStriped ? PALE : 1);
    pen.fillStyle = colors.slots[look.slot(bestThing)];
    pen.fillRect(column, y, 1, height);
    pen.globalAlpha = 1;
    column = -1;
  };
  for (let place = first; place < last; place += 1) {
    const x = (start[place] - from) * scale, wide = length[place] * scale;
    if (wide < 1.2) {
      const at = Math.floor(x);
      if (at !== column) { flush(); column = at; filled = 0; best = -1; }
      filled += wide;
      if (length[place] > best) { best = length[place]; bestThing = thing[place]; }
      continue;
    }
    flush();
    pen.globalAlpha = look.alpha(thing[place]);
    box(pen, x, y, wide, height, look.slot(thing[place]), wide > 26 ? look.name(thing[place]) : "", width, isStriped);
    if (isStriped && wide > 4) stripes(pen, Math.max(x, 0), y, Math.min(x + wide, width), height);
    pen.globalAlpha = 1;
  }
  flush();
  return last - first;
}

function stripes(pen, from, y, to, height) {
  pen.save();
  pen.beginPath();
  pen.rect(from, y, to - from, height);
  pen.clip();
  pen.globalAlpha = 0.28;
  pen.strokeStyle = colors.paper;
  pen.lineWidth = 2;
  pen.beginPath();
  for (let x = from - (from % 6) - height; x < to; x += 6) { pen.moveTo(x, y + height); pen.lineTo(x + height, y); }
  pen.stroke();
  pen.restore();
}

/** The sums of a lane, a column of pixels each: how high says how much of it is filled. */
function drawSums(pen, lane, axis, y, height, look) {
  const { busy, thing, count } = lane.sums, size = lane.span / busy.length;
  let run = -1, runSlot = -1, runHigh = 0, runAlpha = 1;
  const flush = (until) => {
    if (run < 0) return;
    pen.globalAlpha = runAlpha;
    pen.fillStyle = colors.slots[runSlot];
    pen.fillRect(run, y + height - runHigh, until - run, runHigh);
    run = -1;
  };
  for (let column = 0; column < axis.width; column += 1) {
    const low = Math.floor(axis.time(column) / size), high = Math.min(busy.length, Math.max(low + 1, Math.floor(axis.time(column + 1) / size)));
    let sum = 0, most = -1, which = 0, events = 0;
    for (let bucket = low; bucket < high; bucket += 1) {
      sum += busy[bucket];
      events += count[bucket];
      if (busy[bucket] > most) { most = busy[bucket]; which = thing[bucket]; }
    }
    const share = high > low ? sum / (high - low) : 0;
    if (share === 0 && events === 0) { flush(column); continue; }
    const slot = look.slot(which), tall = Math.max(1.5, Math.round(share * height)), alpha = look.alpha(which);
    if (run >= 0 && slot === runSlot && tall === runHigh && alpha === runAlpha) continue;
    flush(column);
    [run, runSlot, runHigh, runAlpha] = [column, slot, tall, alpha];
  }
  flush(axis.width);
  pen.globalAlpha = 1;
}

/** A curve that keeps each value until the next, filled down to 0; nothing is drawn where there is none. */
export function drawCurve(pen, curve, axis, y, height) {
  const { ticks, values, most } = curve;
  const high = (value) => y + height - (Math.max(value, 0) / (most || 1)) * (height - 2);
  pen.fillStyle = pen.strokeStyle = colors.focus;
  let way = null, last = 0;
  const finish = () => {
    if (way === null) return;
    pen.stroke(way);
    way.lineTo(last, y + height);
    way.lineTo(way.from, y + height);
    pen.globalAlpha = 0.35;
    pen.fill(way);
    pen.globalAlpha = 1;
    way = null;
  };
  for (let place = 0; place < ticks.length; place += 1) {
    const until = place + 1 < ticks.length ? ticks[place + 1] : axis.end, value = values[place];
    if (until < axis.from) continue;
    if (ticks[place] > axis.to) break;
    if (value === null) { finish(); continue; }
    const x = Math.max(0, axis.x(ticks[place]));
    if (way === null) { way = Object.assign(new Path2D(), { from: x }); way.moveTo(x, high(value)); } else way.lineTo(x, high(value));
    last = Math.min(axis.width, axis.x(until));
    way.lineTo(last, high(value));
  }
  finish();
}
