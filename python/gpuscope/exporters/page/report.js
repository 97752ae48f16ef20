// Puts the page together: reads the data, makes the timeline, tables and tree, and keeps the address in step with them.

import { makeToggle, slotOf } from "./theme.js";
import { breathe, readColumn } from "./data.js";
import { Lane } from "./lanes.js";
import { Timeline } from "./timeline.js";
import { Tables } from "./table.js";
import { Icicle } from "./icicle.js";
import { makeMemoryChart } from "./memory_chart.js";
import { listenToKeys, makeHelp } from "./keys.js";

const ORDER = ["work", "idle", "calls", "regions", "samples", "functions"];
const KINDS_ON_THE_MAP = new Set(["stream"]);
const MOST_ON_THE_MAP = 4;

/** The recording as the timeline sees it. */
class Model {
  constructor(data) {
    Object.assign(this, { span: data.span, tick: data.tick_ns, strings: data.strings, windows: data.windows, rows: data.rows });
    this.names = data.things.names;
    this.ofRows = data.things.rows;
    this.notes = data.things.notes;
    this.slots = Uint8Array.from(this.names, (id, thing) => data.things.slots[thing] ?? slotOf(this.strings[id]));
    this.groups = data.groups.map((group) => ({ ...group, lanes: group.lanes.map((lane) => new Lane(lane, group.kind, data.span)) }));
    this.lanes = this.groups.flatMap((group) => group.lanes);
    const streams = this.groups.filter((group) => KINDS_ON_THE_MAP.has(group.kind)).flatMap((group) => group.lanes);
    this.mapped = (streams.length ? streams : this.lanes.slice(0, 1)).slice(0, MOST_ON_THE_MAP);
    this.links = null;
    const sums = (list) => { let sum = 0; return Float64Array.from(list, (value) => (sum += value)); };
    this.steps = data.steps && { starts: sums(data.steps.starts), lengths: Float64Array.from(data.steps.lengths) };
    this.curves = data.series.map(({ title, unit, ticks, values }) => ({ title, unit, ticks: sums(ticks), values, most: unit === "%" ? 100 : values.reduce((most, value) => Math.max(most, value), 0) }));
  }

  nameIdOf(thing) { return this.names[thing]; }
  nameOf(thing) { return this.strings[this.names[thing]]; }
  rowOf(thing) { return this.ofRows[thing]; }
  noteOf(thing) { return this.notes[thing] < 0 ? "" : this.strings[this.notes[thing]]; }
  fullNameOf(thing) { return this.ofRows[thing] < 0 ? this.nameOf(thing) : this.strings[this.rows.full[this.ofRows[thing]]]; }

  /** The event that is a row of a table. */
  eventOf(table, row) {
    const lane = this.lanes.find((each) => each.table === table && row >= each.first && row < each.first + each.count);
    return lane && lane.isReady ? { lane, place: row - lane.first } : null;
  }

  /** Which things are of a row of the tables. */
  thingsOf(row) { return row < 0 ? null : Uint8Array.from(this.ofRows, (each) => (each === row ? 1 : 0)); }

  async read(data, whenRead) {
    const names = Object.keys(data.columns);
    for (const table of ORDER) {
      if (!names.includes(`${table}-start`)) continue;
      const column = (name) => readColumn(`${table}-${name}`, data.columns[`${table}-${name}`], data.firsts[table]);
      const columns = { start: await column("start"), length: await column("length"), thing: await column("thing") };
      for (const lane of this.lanes) if (lane.table === table) { lane.fill(columns); if (lane.count > 20000) await breathe(); }
      whenRead(table);
    }
    if (names.includes("work-call")) this.links = await readColumn("work-call", data.columns["work-call"]);
  }
}

const page = document.documentElement;
const island = document.getElementById("report");
const data = JSON.parse(island.textContent);
island.remove();
const say = (text) => { document.getElementById("said").textContent = text; };
const sections = [...document.querySelectorAll("main > section")].map((section) => section.id);
const links = [...document.querySelectorAll("nav a")];
let current = sections[0];

// -- the address: #/section?t=from-to&tab=kernels&sort=gpu&q=gemm&row=3 -------------------------------------------------

let timeline = null, tables = null, icicle = null, isRestoring = false, waiting = 0;

function state() {
  const found = new URLSearchParams();
  if (timeline && timeline.axis.span < 0.9999 * timeline.model.span) found.set("t", `${Math.round(timeline.axis.from)}-${Math.round(timeline.axis.to)}`);
  if (timeline && timeline.chosen) found.set("event", `${timeline.chosen.lane.table}.${timeline.chosen.lane.first + timeline.chosen.place}`);
  if (tables) {
    if (tables.family !== tables.tabs[0].dataset.family) found.set("tab", tables.family);
    if (tables.sort.key !== (data.has_gpu ? "gpu" : "cpu") || tables.sort.up) found.set("sort", (tables.sort.up ? "-" : "") + tables.sort.key);
    if (tables.filterText) found.set("q", tables.filterText);
    if (tables.chosen >= 0) found.set("row", tables.chosen);
  }
  if (icicle && icicle.way) found.set("tree", icicle.way);
  if (icicle && icicle.by !== icicle.first) found.set("by", icicle.by);
  if (icicle && icicle.isInverted) found.set("invert", "1");
  return found.toString();
}

function keep() {
  if (isRestoring) return;
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    const text = state();
    history.replaceState(null, "", `#/${current}${text ? `?${text}` : ""}`);
  }, 150);
}

function restore(goes = true) {
  const [, section, text] = /^#\/(\w*)\??(.*)$/.exec(location.hash) || [];
  if (section === undefined) return;
  const wanted = new URLSearchParams(text);
  isRestoring = true;
  if (timeline && wanted.has("t")) {
    const [from, to] = wanted.get("t").split("-").map(Number);
    if (from >= 0 && to > from) timeline.show(from, to, false);
  }
  if (timeline && wanted.has("event")) {
    const [table, row] = wanted.get("event").split(".");
    const event = timeline.model.eventOf(table, Number(row));
    if (event) timeline.choose(event, false);
  }
  if (tables) {
    const sort = wanted.get("sort");
    const family = { kernels: "kernels", operators: "operators", regions: "regions", calls: "calls" }[section] || wanted.get("tab");
    if (wanted.has("q")) { tables.filterText = wanted.get("q"); document.getElementById("filter").value = tables.filterText; }
    if (family || sort || wanted.has("q")) tables.open(family || tables.family, sort ? { key: sort.replace(/^-/, ""), up: sort.startsWith("-") } : undefined);
    const row = wanted.has("row") ? Number(wanted.get("row")) : -1;
    if (row >= 0 && row < data.rows.count.length) { tables.choose(row); tables.reveal(row); }
  }
  if (icicle) {
    icicle.measureBy(wanted.get("by") || icicle.first);
    if (wanted.has("invert") !== icicle.isInverted) document.getElementById("tree-invert").click();
    if (wanted.has("tree")) icicle.follow(wanted.get("tree"));
  }
  isRestoring = false;
  const place = document.getElementById(["kernels", "operators", "regions", "calls"].includes(section) ? "tables" : section);
  if (goes && place) place.scrollIntoView({ behavior: "auto" });
}

// -- parts ---------------------------------------------------------------------------------------------------------------

const toTimeline = () => document.getElementById("timeline")?.scrollIntoView();

makeToggle(document.getElementById("theme"));
if (document.getElementById("lanes")) {
  timeline = new Timeline(new Model(data), { view: keep, say, chosen: keep });
}
if (document.getElementById("rows")) {
  tables = new Tables(data, {
    changed: keep,
    say,
    chosen: (row) => { if (timeline) timeline.light(timeline.model.thingsOf(row)); keep(); },
    wantsTimeline: () => { toTimeline(); if (timeline) { timeline.show(0, timeline.model.span); timeline.place.focus({ preventScroll: true }); } },
  });
}
if (document.getElementById("icicle")) icicle = new Icicle(data, { changed: keep, say });
if (document.getElementById("memory-chart")) makeMemoryChart(data);
listenToKeys({ help: makeHelp(), sections, timelineKey: (event) => timeline && timeline.key(event), nowIn: () => current });

// The section that is at the top of the window is the current one.
const watch = () => {
  const middle = innerHeight * 0.3;
  const found = sections.filter((id) => document.getElementById(id).getBoundingClientRect().top <= middle).pop() || sections[0];
  for (const link of links) if (link.getAttribute("href") === `#/${found}`) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
  if (found !== current) { current = found; keep(); }
};
addEventListener("scroll", () => requestAnimationFrame(watch), { passive: true });
addEventListener("hashchange", () => restore());
watch();
restore();
page.dataset.drawn = performance.now().toFixed(0);

if (timeline) {
  await timeline.model.read(data, (table) => {
    timeline.layout();
    timeline.draw();
    if (table === "work" || !page.dataset.events) page.dataset.events = performance.now().toFixed(0);
  });
  timeline.draw();
}
restore(false);
page.dataset.complete = performance.now().toFixed(0);
