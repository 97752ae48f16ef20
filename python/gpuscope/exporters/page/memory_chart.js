// Memory in use over time, in bands by line of code or category.

import { sizeText, timeText } from "./units.js";
import { colors, slotOf, whenThemeChanges } from "./theme.js";
import { Axis, momentText } from "./axis.js";
import { sized, zoomOf } from "./pen.js";

const LEFT = 74, BELOW = 22, ABOVE = 18;

export function makeMemoryChart({ memory, span, tick_ns: tick }) {
  const place = document.getElementById("memory-chart"), canvas = place.querySelector("canvas");
  const sums = (list) => { let sum = 0; return Float64Array.from(list, (value) => (sum += value)); };
  const ticks = sums(memory.ticks), bands = memory.bands.map(({ name, values }) => ({ name, values: sums(values), slot: slotOf(name) }));
  const taken = new Set();
  for (const band of bands) { while (taken.has(band.slot)) band.slot = (band.slot + 1) % 12; taken.add(band.slot); }
  const total = ticks.map((_, at) => bands.reduce((sum, { values }) => sum + values[at], 0));
  const most = Math.max(...total, 1) * 1.05;
  const legend = document.getElementById("memory-legend");
  for (const { name, slot } of bands) {
    const entry = document.createElement("span");
    entry.append(Object.assign(document.createElement("span"), { className: `swatch part c${slot}` }), name);
    legend.append(entry);
  }
  const axis = new Axis(span);
  axis.show(ticks[0], Math.max(ticks[ticks.length - 1], ticks[0] + 1) * 1.002);
  const draw = () => {
    const width = place.clientWidth / zoomOf(), height = place.clientHeight / zoomOf();
    const pen = sized(canvas, width, height);
    axis.width = width - LEFT - 8;
    const y = (bytes) => height - BELOW - (bytes / most) * (height - BELOW - ABOVE), x = (time) => LEFT + axis.x(time);
    const unit = 2 ** Math.floor(Math.log2(most / 3));
    pen.textAlign = "right";
    for (let bytes = 0; bytes <= most; bytes += unit) {
      pen.strokeStyle = colors.line;
      pen.beginPath();
      pen.moveTo(LEFT, y(bytes));
      pen.lineTo(width - 8, y(bytes));
      pen.stroke();
      pen.fillStyle = colors.faint;
      pen.fillText(sizeText(bytes), LEFT - 6, y(bytes));
    }
    const { apart, times } = axis.marks(100, tick);
    pen.textAlign = "center";
    for (const ns of times) if (x(ns / tick) < width - 34) pen.fillText(momentText(ns, apart), Math.max(x(ns / tick), LEFT + 16), height - BELOW / 2);
    const lower = new Float64Array(ticks.length);
    for (const { values, slot } of bands) {
      pen.fillStyle = colors.slots[slot];
      pen.beginPath();
      for (let at = 0; at < ticks.length; at += 1) {
        const until = at + 1 < ticks.length ? ticks[at + 1] : axis.to;
        if (values[at] > 0) pen.rect(x(ticks[at]), y(lower[at] + values[at]), Math.max(x(until) - x(ticks[at]), 0.6), y(lower[at]) - y(lower[at] + values[at]));
        lower[at] += values[at];
      }
      pen.fill();
    }
    const peak = x(ticks[memory.peak]);
    pen.strokeStyle = colors.ink;
    pen.beginPath();
    pen.moveTo(peak, ABOVE - 6);
    pen.lineTo(peak, height - BELOW);
    pen.stroke();
    pen.fillStyle = colors.ink;
    pen.textAlign = peak > width / 2 ? "right" : "left";
    pen.fillText(`peak ${sizeText(total[memory.peak])} at ${timeText(ticks[memory.peak] * tick)}`, peak + (peak > width / 2 ? -5 : 5), ABOVE - 9);
  };
  whenThemeChanges(draw);
  new ResizeObserver(draw).observe(place);
}
