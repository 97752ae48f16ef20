// CPU against GPU: a chart of one operation, and the choice of what it shows.

import { countText } from "./units.js";
import { makeToggle } from "./theme.js";
import { listenToKeys, makeHelp } from "./keys.js";
import { CHART_KEYS, openForPrint, say } from "./chart_page.js";
import { Chart, kindText } from "./series.js";

(() => {
  const found = JSON.parse(document.getElementById("exploration").textContent);
  const at = (id) => document.getElementById(id);
  // Slots of the palette, which everybody can tell apart; shapes and dashes say it too.
  const SIDES = {
    cpu: { name: "CPU", slot: 7, symbol: "circle", dash: "solid" },
    gpu: { name: "GPU", slot: 1, symbol: "square", dash: "solid" },
    "gpu+transfers": { name: "GPU with transfers", slot: 11, symbol: "diamond", dash: "dash" },
  };
  const METRICS = {
    time: { kind: "time", title: () => "time of a call" },
    speedup: { kind: "times", title: () => "CPU's time over the GPU's" },
    rate: { kind: "rate", title: (unit) => `throughput in ${unit}/s` },
  };
  const CONTROLS = ["operation", "metric", "data", "logx", "logy"];
  const chart = new Chart(at("chart"), { say, drawn: () => {} });

  // Value, low and high of a point in a metric; null where it has none.
  function values({ wall, speedup, rate }, metric) {
    if (metric === "time") return [wall.value, wall.low, wall.high];
    if (metric === "speedup") return speedup && [speedup.value, speedup.low, speedup.high];
    const over = (seconds) => (seconds === null ? null : (rate * wall.value) / seconds);
    return [rate, over(wall.high), over(wall.low)];
  }

  function notes(point, unit) {
    const { wall, speedup } = point;
    const time = (value) => kindText({ kind: "time" }, value), times = (value) => kindText({ kind: "times" }, value);
    const between = (written, { low, high }) =>
      low === null || high === null ? "too few samples for an interval" : `${written(low)} to ${written(high)}`;
    const lines = [
      `${SIDES[point.side].name}, n = ${countText(point.n)}`,
      `time ${time(wall.value)} (${between(time, wall)})`,
      `throughput ${kindText({ kind: "rate", unit }, point.rate)}`,
    ];
    if (speedup) lines.push(`speed-up ${times(speedup.value)} (${between(times, speedup)})`);
    lines.push(`${wall.n} samples, worth ${Math.round(wall.n_eff)} independent ones`);
    if (!point.converged) lines.push("less precise than wanted");
    return lines.join("\n");
  }

  function lineOf(points, side, metric, unit) {
    const shown = points.filter((point) => point.side === side).map((point) => [point, values(point, metric)]).filter(([, three]) => three && three[0] > 0);
    const column = (index) => shown.map(([, three]) => (three.every((value) => value !== null && value > 0) ? three[index] : index ? null : three[0]));
    return {
      ...SIDES[side], joined: true, x: shown.map(([{ n }]) => n), y: column(0), low: column(1), high: column(2),
      notes: shown.map(([point]) => notes(point, unit)),
    };
  }

  function chosen() {
    return Object.fromEntries(CONTROLS.map((id) => [id, at(id).type === "checkbox" ? at(id).checked : at(id).value]));
  }

  function draw() {
    const choice = chosen();
    const operation = found.operations.find((each) => each.name === choice.operation), { unit } = operation;
    const points = found.points.filter((point) => point.operation === choice.operation);
    const moved = { device: [false], transfers: [true], both: [false, true] }[choice.data || "both"];
    const sides = ["cpu", ...moved.map((transfers) => (transfers ? "gpu+transfers" : "gpu"))];
    const crossovers = found.crossovers.filter((each) => each.operation === choice.operation && moved.includes(each.transfers));
    // A line where CPU and GPU take the same time, and a field as wide as its interval.
    const marks = crossovers.flatMap(({ crossings, transfers }) => crossings.map((crossing) => ({
      ...crossing, axis: "x", slot: SIDES[transfers ? "gpu+transfers" : "gpu"].slot, label: `n ≈ ${countText(Math.round(crossing.value))}`,
    })));
    if (choice.metric === "speedup") marks.push({ axis: "y", value: 1, low: null, high: null, label: "" });
    const { kind, title } = METRICS[choice.metric];
    const sizes = [...new Set(points.map((point) => point.n))].sort((one, other) => one - other);
    chart.show({
      x: { title: "n (rows and columns)", kind: "count", log: choice.logx, ticks: sizes },
      y: { title: title(unit), kind, unit, log: choice.logy },
      lines: sides.map((side) => lineOf(points, side, choice.metric, unit)).filter((line) => line.x.length),
      marks,
    });
    const verdicts = crossovers.map(({ transfers, text }) => `${transfers ? "With transfers" : "Data on the GPU"}: ${text}.`);
    at("verdict").replaceChildren(...verdicts.map((verdict) => Object.assign(document.createElement("p"), { textContent: verdict })));
    const metric = at("metric").selectedOptions[0].textContent;
    at("chart").setAttribute("aria-label", `Chart of ${operation.title}: ${metric} by size. The tables below hold its figures.`);
    at("chart").dataset.shown = [choice.operation, choice.metric, choice.data].join(" ");
  }

  // The choice lives in the address too, so that a link shows what its sender saw.
  function remember() {
    const choice = Object.entries(chosen()).map(([id, value]) => [id, String(value)]);
    history.replaceState(null, "", "#" + new URLSearchParams(choice));
  }
  function recall() {
    for (const [id, value] of new URLSearchParams(location.hash.slice(1))) {
      if (!CONTROLS.includes(id)) continue;
      const control = at(id);
      if (control.type === "checkbox") control.checked = value === "true";
      else if ([...control.options].some((option) => option.value === value)) control.value = value;
    }
  }

  if (found.gpu === null) {
    for (const element of document.querySelectorAll("[data-gpu]")) element.remove();
    CONTROLS.splice(CONTROLS.indexOf("data"), 1);
  }
  recall();
  draw();
  at("controls").addEventListener("change", () => { draw(); remember(); });
  at("controls").addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", () => { recall(); draw(); });
  makeToggle(at("theme"));
  listenToKeys({ help: makeHelp(CHART_KEYS) });
  openForPrint(at("figures"));
  document.documentElement.dataset.complete = performance.now().toFixed(0);
})();
