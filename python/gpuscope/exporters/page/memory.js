// Memory over time: what lives at each moment, and the moment that the reader chooses.

import { fixed, sizeText } from "./units.js";
import { SLOTS, colors, makeToggle, whenThemeChanges } from "./theme.js";
import { zoomOf } from "./pen.js";
import { listenToKeys, makeHelp } from "./keys.js";

const MEMORY_KEYS = [
  ["?", "this list"], ["t", "light or dark"], ["← →", "the moment before, after; with Shift by ten"], ["PageUp PageDown", "by a hundred"],
  ["Home End", "the first moment, the last"], ["p", "the peak"], ["w s", "zoom in, out; also + and −"], ["a d", "move the view"], ["0", "the whole time"],
];

(() => {
  const data = JSON.parse(document.getElementById("memory").textContent);
  const at = (id) => document.getElementById(id);
  const sums = (list) => { let sum = 0; return Float64Array.from(list, (value) => (sum += value)); };
  const times = sums(data.times), used = sums(data.used), reserved = data.reserved && sums(data.reserved);
  const steps = times.length;
  for (const view of Object.values(data.views)) for (const group of view.groups) group.sizes = sums(group.sizes);
  // Slots of the palette, near to the colors of torch's own timeline.
  const OF_CATEGORY = [5, 2, 6, 9, 0, 8, 7, 3, 4, 1, 1];
  const categoryColor = (category) => colors.slots[OF_CATEGORY[category]];
  const MARGIN = { left: 74, right: 12, top: 22, bottom: 26 };
  const LARGEST_ROWS = 100;
  const chart = at("chart"), canvas = chart.querySelector("canvas"), tip = at("tip");
  const last = Math.max(times[steps - 1], 1);

  const state = { view: "line", from: 0, to: last, step: data.peak, hover: null, drag: null };

  function time(us) {
    const [scale, unit] = last >= 2e6 ? [1e6, "s"] : last >= 2e3 ? [1e3, "ms"] : [1, "µs"];
    return `${(us / scale).toLocaleString("en", { maximumFractionDigits: 3 })} ${unit}`;
  }
  const groups = () => data.views[state.view === "allocations" ? "category" : state.view].groups;
  function color(group, index) {
    if (group.id < 0) return group.name.startsWith("from") ? colors.before : colors.rest;
    return state.view === "category" || state.view === "allocations" ? categoryColor(group.id) : colors.slots[index % SLOTS];
  }

  // The last step that is not later, and not before the first.
  function stepAt(us) {
    let low = 0, high = steps - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (times[middle] <= us) low = middle; else high = middle - 1;
    }
    return low;
  }

  let box, x, y, columns;
  function measure() {
    const zoom = zoomOf(), width = chart.clientWidth / zoom, height = chart.clientHeight / zoom, ratio = (devicePixelRatio || 1) * zoom;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    box = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom, ratio };
    const wide = Math.max(1, box.right - box.left);
    x = (us) => box.left + ((us - state.from) / (state.to - state.from)) * wide;
    // For each column of pixels the step in it with the most in use, or the one that goes on through it.
    columns = new Int32Array(Math.ceil(wide));
    const span = (state.to - state.from) / wide;
    let next = stepAt(state.from);
    let top = 1;
    for (let column = 0; column < columns.length; column += 1) {
      const end = column + 1 < columns.length ? state.from + (column + 1) * span : state.to * (1 + 1e-12); // the last has its end too
      let best = next;
      while (next + 1 < steps && times[next + 1] < end) {
        next += 1;
        if (used[next] > used[best]) best = next;
      }
      columns[column] = best;
      top = Math.max(top, used[best], reserved ? reserved[best] : 0);
    }
    const most = top * 1.04;
    y = (bytes) => box.bottom - (bytes / most) * (box.bottom - box.top);
    box.most = most;
  }

  // Draws the same color over neighbouring columns in one go.
  function band(pen, lower, upper) {
    pen.beginPath();
    let start = 0;
    for (let column = 1; column <= columns.length; column += 1) {
      if (column < columns.length && lower[column] === lower[start] && upper[column] === upper[start]) continue;
      if (upper[start] > lower[start])
        pen.rect(box.left + start, y(upper[start]), column - start, y(lower[start]) - y(upper[start]));
      start = column;
    }
    pen.fill();
  }

  function drawGroups(pen) {
    const lower = new Float64Array(columns.length), upper = new Float64Array(columns.length);
    groups().forEach((group, index) => {
      for (let column = 0; column < columns.length; column += 1) upper[column] = lower[column] + group.sizes[columns[column]];
      pen.fillStyle = color(group, index);
      band(pen, lower, upper);
      lower.set(upper);
    });
  }

  // The allocations that live at a step, the oldest first: what was handed out later lies above it.
  function living(step) {
    const { first, end } = data.allocations, found = [];
    for (let allocation = 0; allocation < first.length && first[allocation] <= step; allocation += 1) if (end[allocation] > step) found.push(allocation);
    return found;
  }
  function drawAllocations(pen) {
    const { bytes, category } = data.allocations;
    const open = new Map();
    const close = (allocation, { start, low }, column) => {
      const bottom = y(low), top = y(low + bytes[allocation]);
      pen.fillStyle = categoryColor(category[allocation]);
      pen.globalAlpha = allocation % 2 ? 0.72 : 1;
      pen.fillRect(box.left + start, top, column - start, Math.max(0.3, bottom - top - (bottom - top > 3 ? 0.7 : 0)));
    };
    let before = -1;
    for (let column = 0; column < columns.length; column += 1) {
      if (columns[column] === before) continue;
      before = columns[column];
      const now = new Map();
      let low = rest(before);
      for (const allocation of living(before)) { now.set(allocation, low); low += bytes[allocation]; }
      for (const [allocation, place] of open)
        if (now.get(allocation) !== place.low) { close(allocation, place, column); open.delete(allocation); }
      for (const [allocation, low] of now) if (!open.has(allocation)) open.set(allocation, { start: column, low });
    }
    for (const [allocation, place] of open) close(allocation, place, columns.length);
    pen.globalAlpha = 1;
    pen.fillStyle = colors.rest;
    const upper = Float64Array.from(columns, rest);
    band(pen, new Float64Array(columns.length), upper);
  }
  // What is in use beside the largest allocations.
  function rest(step) {
    return Math.max(0, living(step).reduce((left, allocation) => left - data.allocations.bytes[allocation], used[step]));
  }

  function draw() {
    measure();
    const pen = canvas.getContext("2d");
    pen.setTransform(box.ratio, 0, 0, box.ratio, 0, 0);
    pen.clearRect(0, 0, chart.clientWidth, chart.clientHeight);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.lineWidth = 1;
    const unit = 2 ** Math.floor(Math.log2(box.most / 3));
    for (let bytes = 0; bytes <= box.most; bytes += unit) {
      pen.strokeStyle = colors.line;
      pen.beginPath(); pen.moveTo(box.left, y(bytes)); pen.lineTo(box.right, y(bytes)); pen.stroke();
      pen.fillStyle = colors.faint; pen.textAlign = "right";
      pen.fillText(sizeText(bytes), box.left - 6, y(bytes));
    }
    // Marks at round times, as many as have room.
    const room = (75 * (state.to - state.from)) / Math.max(1, box.right - box.left), power = 10 ** Math.floor(Math.log10(room));
    const apart = power * [1, 2, 5, 10].find((step) => step * power >= room);
    for (let us = Math.ceil(state.from / apart) * apart; us <= state.to; us += apart) {
      pen.fillStyle = colors.faint;
      pen.textAlign = x(us) < box.left + 30 ? "left" : x(us) > box.right - 30 ? "right" : "center";
      pen.fillText(time(us), x(us), box.bottom + 14);
    }
    if (state.view === "allocations") drawAllocations(pen); else drawGroups(pen);
    if (reserved) {
      pen.strokeStyle = colors.held; pen.setLineDash([5, 4]); pen.lineWidth = 1.5; pen.beginPath();
      for (let column = 0; column < columns.length; column += 1) {
        const level = y(reserved[columns[column]]);
        if (column) pen.lineTo(box.left + column, level); else pen.moveTo(box.left, level);
        pen.lineTo(box.left + column + 1, level);
      }
      pen.stroke(); pen.setLineDash([]);
    }
    const rule = (step, name, words) => {
      const place = Math.min(box.right, Math.max(box.left, x(times[step])));
      if (times[step] < state.from && stepAt(state.from) !== step || times[step] > state.to) return;
      pen.strokeStyle = colors[name]; pen.lineWidth = 1.5;
      pen.beginPath(); pen.moveTo(place, box.top - 6); pen.lineTo(place, box.bottom); pen.stroke();
      if (!words) return;
      pen.fillStyle = colors[name];
      pen.textAlign = place > (box.left + box.right) / 2 ? "right" : "left";
      pen.fillText(words, place + (pen.textAlign === "left" ? 5 : -5), box.top - 10);
    };
    rule(data.peak, "ink", `peak ${sizeText(used[data.peak])}`);
    if (state.step !== data.peak) rule(state.step, "focus", "");
    if (state.drag && state.drag.moved) {
      pen.fillStyle = colors.focus; pen.globalAlpha = 0.2;
      pen.fillRect(Math.min(state.drag.from, state.drag.to), box.top, Math.abs(state.drag.to - state.drag.from), box.bottom - box.top);
      pen.globalAlpha = 1;
    }
    chart.dataset.shown = `${state.view} ${state.step} ${Math.round(state.from)} ${Math.round(state.to)}`;
  }

  function row(bytes, share, name, hue, stack) {
    const line = document.createElement("tr");
    const cells = [sizeText(bytes), `${fixed(100 * share, 1)} %`].map((text) => Object.assign(document.createElement("td"), { textContent: text }));
    const what = document.createElement("td");
    const swatch = Object.assign(document.createElement("span"), { className: "swatch" });
    swatch.style.background = hue;
    const frames = stack === undefined ? [] : data.stacks[stack];
    if (frames.length) {
      const more = document.createElement("details"), summary = document.createElement("summary");
      summary.append(swatch, name);
      more.append(summary, Object.assign(document.createElement("pre"), { textContent: frames.join("\n") }));
      what.append(more);
    } else what.append(swatch, name);
    line.append(...cells, what);
    return line;
  }

  function tell() {
    const total = used[state.step], rows = [];
    if (state.view === "allocations") {
      const { bytes, category, line, stack } = data.allocations;
      const here = living(state.step).sort((a, b) => bytes[b] - bytes[a]);
      for (const allocation of here.slice(0, LARGEST_ROWS))
        rows.push([bytes[allocation], `${data.lines[line[allocation]]}, ${data.categories[category[allocation]]}`, categoryColor(category[allocation]), stack[allocation]]);
      const others = total - rows.reduce((sum, [bytes]) => sum + bytes, 0);
      if (others > 0) rows.push([others, "all others", colors.rest]);
    } else {
      groups().forEach((group, index) => {
        if (group.sizes[state.step] > 0) rows.push([group.sizes[state.step], group.name, color(group, index), group.stack]);
      });
      rows.sort((a, b) => b[0] - a[0]);
    }
    const where = state.step === data.peak ? "At the peak" : "In use";
    const held = reserved && reserved[state.step] ? `, ${sizeText(reserved[state.step])} held from the driver` : "";
    at("moment").textContent = `${where}, ${time(times[state.step])}: ${sizeText(total)}${held}`;
    at("what").textContent = { category: "category", line: "line of code, with the stack behind most of it", library: "library", region: "region of the program", allocations: "allocation" }[state.view];
    at("rows").replaceChildren(...rows.map(([bytes, name, hue, stack]) => row(bytes, bytes / Math.max(total, 1), name, hue, stack)));
    at("legend").textContent = reserved ? "Dashed: held from the driver." : "";
    chart.setAttribute("aria-valuemin", 0);
    chart.setAttribute("aria-valuemax", steps - 1);
    chart.setAttribute("aria-valuenow", state.step);
    chart.setAttribute("aria-valuetext", at("moment").textContent);
  }

  let wanted = false;
  function update(change, tableToo = true) {
    Object.assign(state, change);
    if (tableToo) tell();
    if (wanted) return;
    wanted = true;
    requestAnimationFrame(() => { wanted = false; draw(); });
  }

  function look(from, to) {
    const wide = Math.min(last, Math.max(to - from, Math.max(1, last / 1e6)));
    const begin = Math.min(Math.max(0, from), last - wide);
    update({ from: begin, to: begin + wide }, false);
  }
  function zoom(factor, around) {
    look(around - (around - state.from) * factor, around + (state.to - around) * factor);
  }
  function move(share) {
    const by = share * (state.to - state.from);
    look(state.from + by, state.to + by);
  }
  function choose(step) {
    const kept = Math.min(steps - 1, Math.max(0, step));
    update({ step: kept });
    const us = times[kept], wide = state.to - state.from;
    if (us < state.from || us > state.to) look(us - wide / 2, us + wide / 2);
  }
  const middle = () => { const us = times[state.step]; return us >= state.from && us <= state.to ? us : (state.from + state.to) / 2; };

  // Pixels of the drawing, which grows with the text of the page.
  const inside = (event) => (event.clientX - chart.getBoundingClientRect().left) / zoomOf();
  const usAt = (place) => state.from + ((place - box.left) / Math.max(1, box.right - box.left)) * (state.to - state.from);
  const columnAt = (place) => columns[Math.min(columns.length - 1, Math.max(0, Math.floor(place - box.left)))];

  function hovered(step, bytes) {
    if (bytes < 0 || bytes > used[step]) return "";
    let low = 0;
    if (state.view === "allocations") {
      low = rest(step);
      if (bytes < low) return `smaller allocations: ${sizeText(low)}`;
      const found = living(step).find((allocation) => (low += data.allocations.bytes[allocation]) > bytes);
      return found === undefined ? "" : `${data.lines[data.allocations.line[found]]}\n${data.categories[data.allocations.category[found]]}: ${sizeText(data.allocations.bytes[found])}`;
    }
    const found = groups().find((group) => (low += group.sizes[step]) > bytes);
    return found ? `${found.name}: ${sizeText(found.sizes[step])}` : "";
  }
  chart.addEventListener("pointermove", (event) => {
    const place = inside(event);
    if (state.drag) {
      state.drag.to = Math.min(box.right, Math.max(box.left, place));
      state.drag.moved = state.drag.moved || Math.abs(place - state.drag.from) > 4;
      update({}, false);
    }
    const step = columnAt(place), zoom = zoomOf(), top = (event.clientY - chart.getBoundingClientRect().top) / zoom;
    const bytes = ((box.bottom - top) / (box.bottom - box.top)) * box.most;
    tip.textContent = [`${time(times[step])}: ${sizeText(used[step])}`, hovered(step, bytes)].filter(Boolean).join("\n");
    tip.hidden = false;
    tip.style.transform = `translate(${Math.min(place * zoom + 14, Math.max(0, chart.clientWidth - tip.offsetWidth))}px, ${Math.max(0, top * zoom - tip.offsetHeight - 10)}px)`;
  });
  chart.addEventListener("pointerleave", () => { tip.hidden = true; });
  chart.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    state.drag = { from: inside(event), to: inside(event), moved: false };
    if (chart.setPointerCapture && event.pointerId !== undefined) try { chart.setPointerCapture(event.pointerId); } catch { /* a made-up pointer */ }
  });
  chart.addEventListener("pointerup", () => {
    const { drag } = state;
    state.drag = null;
    if (!drag) return;
    if (drag.moved) look(usAt(Math.min(drag.from, drag.to)), usAt(Math.max(drag.from, drag.to)));
    else choose(columnAt(drag.from));
  });
  chart.addEventListener("pointercancel", () => update({ drag: null }, false));
  chart.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, usAt(inside(event)));
  }, { passive: false });
  chart.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const by = event.shiftKey ? 10 : 1;
    const act = {
      ArrowRight: () => choose(state.step + by), ArrowUp: () => choose(state.step + by),
      ArrowLeft: () => choose(state.step - by), ArrowDown: () => choose(state.step - by),
      PageUp: () => choose(state.step + 100), PageDown: () => choose(state.step - 100),
      Home: () => choose(0), End: () => choose(steps - 1), p: () => choose(data.peak), P: () => choose(data.peak),
      "+": () => zoom(0.5, middle()), "=": () => zoom(0.5, middle()), "-": () => zoom(2, middle()), 0: () => look(0, last),
      w: () => zoom(0.7, middle()), s: () => zoom(1 / 0.7, middle()), a: () => move(-0.15), d: () => move(0.15),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  at("in").addEventListener("click", () => zoom(0.5, middle()));
  at("out").addEventListener("click", () => zoom(2, middle()));
  at("all").addEventListener("click", () => look(0, last));
  at("peak").addEventListener("click", () => choose(data.peak));

  // The choice lives in the address too, so that a link shows what its sender saw.
  const radios = [...document.querySelectorAll("[name=view]")];
  function recall() {
    const wanted = new URLSearchParams(location.hash.slice(1));
    const radio = radios.find((radio) => radio.value === wanted.get("view"));
    if (radio) radio.checked = true;
    const step = wanted.has("step") ? Number(wanted.get("step")) : state.step;
    update({ view: radios.find((radio) => radio.checked).value });
    choose(Number.isInteger(step) ? step : state.step);
  }
  at("controls").addEventListener("change", () => {
    update({ view: radios.find((radio) => radio.checked).value });
    history.replaceState(null, "", "#" + new URLSearchParams({ view: state.view, step: state.step }));
  });
  at("controls").addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", recall);
  makeToggle(at("theme"));
  listenToKeys({ help: makeHelp(MEMORY_KEYS) });
  whenThemeChanges(() => update({}));
  new ResizeObserver(() => update({}, false)).observe(chart);
  recall();
  draw();
})();
