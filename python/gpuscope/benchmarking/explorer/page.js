"use strict";
(() => {
  const found = JSON.parse(document.getElementById("exploration").textContent);
  const at = (id) => document.getElementById(id);
  const SIDES = {
    cpu: { name: "CPU", color: "--cpu", symbol: "circle", dash: "solid" },
    gpu: { name: "GPU", color: "--gpu", symbol: "square", dash: "solid" },
    "gpu+transfers": { name: "GPU with transfers", color: "--moved", symbol: "diamond", dash: "dash" },
  };
  const CONTROLS = ["operation", "metric", "data", "logx", "logy"];
  const chart = at("chart");
  const dark = matchMedia("(prefers-color-scheme: dark)");

  // Plotly reads a little HTML in its texts.
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  const digits = (value) => (value >= 100 ? Math.round(value).toLocaleString("en") : value.toPrecision(3));
  function scaled(value, steps, rest) {
    if (value === null) return "unknown";
    const [size, unit] = steps.find(([size]) => value >= 0.9995 * size) || rest;
    return `${digits(value / size)} ${unit}`;
  }
  const time = (value) => scaled(value, [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]], [1e-9, "ns"]);
  const rate = (value, unit) =>
    scaled(value, [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]].map(([size, prefix]) => [size, (unit === "items" ? `${prefix} ` : prefix) + unit + "/s"]), [1, unit + "/s"]);
  const times = (value) => (value === null ? "unknown" : `${digits(value)}×`);

  // Value, low and high of a point in the metric shown; null where it has none.
  function values(point, metric) {
    const wall = point.wall;
    if (metric === "time") return [wall.value, wall.low, wall.high];
    if (metric === "speedup") return point.speedup && [point.speedup.value, point.speedup.low, point.speedup.high];
    const work = point.rate * wall.value;
    const over = (seconds) => (seconds === null ? null : work / seconds);
    return [point.rate, over(wall.high), over(wall.low)];
  }

  function hover(point, unit) {
    const { wall, speedup } = point;
    const between = (written, { low, high }) =>
      low === null || high === null ? "too few samples for an interval" : `${written(low)} to ${written(high)}`;
    const lines = [
      `<b>${SIDES[point.side].name}</b>, n = ${point.n.toLocaleString("en")}`,
      `time ${time(wall.value)} (${between(time, wall)})`,
      `throughput ${rate(point.rate, unit)}`,
    ];
    if (speedup) lines.push(`speed-up ${times(speedup.value)} (${between(times, speedup)})`);
    lines.push(`${wall.n} samples, worth ${Math.round(wall.n_eff)} independent ones`);
    if (!point.converged) lines.push("less precise than wanted");
    return lines.map((line, row) => (row ? plain(line) : line)).join("<br>");
  }

  const drawable = (value) => value !== null && value > 0;

  // Neighbours whose intervals are known, together: a band does not cross a point that has none.
  function runs(shown) {
    const found = [[]];
    for (const row of shown) {
      if (row[1].every(drawable)) found[found.length - 1].push(row);
      else found.push([]);
    }
    return found.filter((run) => run.length);
  }

  function traces(points, side, choice, unit, color) {
    const shown = points
      .filter((point) => point.side === side)
      .map((point) => [point, values(point, choice.metric)])
      .filter(([, three]) => three && drawable(three[0]));
    if (!shown.length) return [];
    const { name, color: hue, symbol, dash } = SIDES[side];
    const columns = (rows, index) => ({ x: rows.map(([point]) => point.n), y: rows.map(([, three]) => three[index]) });
    const edge = { mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup: side };
    const bands = runs(shown).flatMap((run) => [
      { ...edge, ...columns(run, 1) },
      { ...edge, ...columns(run, 2), fill: "tonexty", fillcolor: color(hue) + "40" },
    ]);
    const symbols = shown.map(([, three]) => (three.every(drawable) ? symbol : `${symbol}-open`));
    return [
      ...bands,
      {
        ...columns(shown, 0), name, legendgroup: side, mode: "lines+markers",
        line: { color: color(hue), width: 2, dash }, marker: { symbol: symbols, size: 8, color: color(hue) },
        text: shown.map(([point]) => hover(point, unit)), hovertemplate: "%{text}<extra></extra>",
      },
    ];
  }

  // A line where CPU and GPU take the same time, and a field as wide as its interval.
  function marks({ crossing, transfers }, choice, color, row) {
    const side = SIDES[transfers ? "gpu+transfers" : "gpu"];
    const look = { type: "rect", yref: "paper", y0: 0, y1: 1, layer: "below" };
    const shapes = [
      { ...look, type: "line", x0: crossing.value, x1: crossing.value, line: { color: color(side.color), width: 1.5, dash: "dot" } },
    ];
    shapes.push({ ...look, x0: crossing.low, x1: crossing.high, line: { width: 0 }, fillcolor: color(side.color) + "33" });
    const label = {
      x: choice.logx ? Math.log10(crossing.value) : crossing.value, y: 1 - 0.07 * row, yref: "paper", yanchor: "top", xanchor: "left",
      xshift: 4, text: `n ≈ ${Math.round(crossing.value).toLocaleString("en")}`, showarrow: false,
      font: { color: color(side.color) }, bgcolor: color("--paper"), opacity: 0.9,
    };
    return { shapes, label };
  }

  // Plotly writes 0.01 s where people write 10 ms.
  function decades(written) {
    const values = Array.from({ length: 28 }, (_, index) => 10 ** (index - 12));
    return { tickvals: values, ticktext: values.map((value) => written(value).replace(/\.0+(?=\D|$)/, "")) };
  }

  function chosen() {
    return Object.fromEntries(CONTROLS.map((id) => [id, at(id).type === "checkbox" ? at(id).checked : at(id).value]));
  }

  function draw(size) {
    const choice = chosen();
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const operation = found.operations.find((operation) => operation.name === choice.operation);
    const points = found.points.filter((point) => point.operation === choice.operation);
    const moved = { device: [false], transfers: [true], both: [false, true] }[choice.data || "both"];
    const sides = ["cpu", ...moved.map((transfers) => (transfers ? "gpu+transfers" : "gpu"))];
    const crossovers = found.crossovers.filter(
      (crossover) => crossover.operation === choice.operation && moved.includes(crossover.transfers)
    );
    const marked = crossovers
      .flatMap(({ crossings, transfers }) => crossings.map((crossing) => ({ crossing, transfers })))
      .map((crossover, row) => marks(crossover, choice, color, row));
    const title = {
      time: "time of a call", speedup: "CPU's time over the GPU's", rate: `throughput in ${operation.unit}/s`,
    }[choice.metric];
    const axis = { gridcolor: color("--line"), zerolinecolor: color("--line"), linecolor: color("--line"), exponentformat: "SI", minexponent: 0, automargin: true };
    const written = { time, speedup: times, rate: (value) => rate(value, operation.unit) }[choice.metric];
    const shapes = marked.flatMap((mark) => mark.shapes);
    if (choice.metric === "speedup")
      shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { color: color("--faint"), width: 1 } });
    const sizes = [...new Set(points.map((point) => point.n))].sort((a, b) => a - b);
    const layout = {
      ...(size || { autosize: true }),
      paper_bgcolor: color("--paper"), plot_bgcolor: color("--paper"),
      font: { color: color("--ink"), family: "system-ui, sans-serif", size: 14 },
      margin: { l: 60, r: 16, t: 36, b: 50 },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
      hoverlabel: { align: "left", bgcolor: color("--panel"), bordercolor: color("--line"), font: { color: color("--ink") } },
      xaxis: {
        ...axis, type: choice.logx ? "log" : "linear", exponentformat: "none", separatethousands: true, title: { text: "n (rows and columns)" },
        ...(choice.logx ? { tickvals: sizes, ticktext: sizes.map((n) => n.toLocaleString("en")) } : { rangemode: "tozero" }),
      },
      yaxis: { ...axis, type: choice.logy ? "log" : "linear", title: { text: title }, ...(choice.logy ? decades(written) : { rangemode: "tozero", ticksuffix: { time: "s", speedup: "×" }[choice.metric] || "" }) },
      shapes, annotations: marked.map((mark) => mark.label),
    };
    const data = sides.flatMap((side) => traces(points, side, choice, operation.unit, color));
    const buttons = [["toImage"], ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]];
    const config = { responsive: true, displaylogo: false, displayModeBar: innerWidth > 640 && "hover", modeBarButtons: buttons };
    Plotly.react(chart, data, layout, config);
    const verdicts = crossovers.map(({ transfers, text }) => `${transfers ? "With transfers" : "Data on the GPU"}: ${text}.`);
    at("verdict").replaceChildren(
      ...verdicts.map((verdict) => Object.assign(document.createElement("p"), { textContent: verdict }))
    );
    const metric = at("metric").selectedOptions[0].textContent;
    chart.setAttribute("aria-label", `Chart of ${operation.title}: ${metric} by size. The tables below hold its figures.`);
    chart.dataset.shown = [choice.operation, choice.metric, choice.data].join(" ");
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

  if (found.gpu === null) document.querySelectorAll("[data-gpu]").forEach((element) => element.remove());
  if (found.gpu === null) CONTROLS.splice(CONTROLS.indexOf("data"), 1);
  recall();
  draw();
  at("controls").addEventListener("change", () => { draw(); remember(); });
  addEventListener("hashchange", () => { recall(); draw(); });
  dark.addEventListener("change", () => draw());

  // Pages are narrower than screens, and what is folded away does not print.
  const PAPER = { width: 680, height: 410 };
  const figures = at("figures");
  let open = false;
  addEventListener("beforeprint", () => {
    open = figures.open;
    figures.open = true;
    draw(PAPER);
  });
  addEventListener("afterprint", () => {
    figures.open = open;
    draw();
  });
})();
