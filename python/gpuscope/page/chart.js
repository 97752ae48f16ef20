// A page of one chart: the selected view and axes, also in the address.

import { makeToggle } from "./theme.js";
import { listenToKeys, makeHelp } from "./keys.js";
import { CHART_KEYS, openForPrint, say } from "./chart_page.js";
import { Chart } from "./series.js";

(() => {
  const at = (id) => document.getElementById(id);
  const { views } = JSON.parse(at("data").textContent);
  const select = at("view"), logs = { x: at("logx"), y: at("logy") };
  const chart = new Chart(at("chart"), { say, drawn: () => {} });
  let view = views[0];

  function show() {
    at("logx-name").textContent = view.x.title;
    chart.show({ ...view, x: { ...view.x, log: logs.x.checked }, y: { ...view.y, log: logs.y.checked } });
    at("verdict").textContent = view.text;
    at("chart").setAttribute("aria-label", `Chart of ${view.y.title} over ${view.x.title}. The tables below hold its figures.`);
    at("chart").dataset.shown = view.name;
  }
  function choose(name) {
    view = views.find((each) => each.name === name) || views[0];
    if (select) select.value = view.name;
    logs.x.checked = view.x.log;
    logs.y.checked = view.y.log;
  }
  function recall() {
    const wanted = new URLSearchParams(location.hash.slice(1));
    choose(wanted.get("view"));
    for (const axis of ["x", "y"]) if (wanted.has(`log${axis}`)) logs[axis].checked = wanted.get(`log${axis}`) === "true";
    show();
  }
  at("controls").addEventListener("change", (event) => {
    if (event.target === select) choose(select.value);
    show();
    history.replaceState(null, "", `#${new URLSearchParams({ view: view.name, logx: logs.x.checked, logy: logs.y.checked })}`);
  });
  at("controls").addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", recall);
  makeToggle(at("theme"));
  listenToKeys({ help: makeHelp(CHART_KEYS) });
  openForPrint(at("figures"));
  recall();
  document.documentElement.dataset.complete = performance.now().toFixed(0);
})();
