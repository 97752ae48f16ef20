// Puts the page together: reads the data, makes the timeline, tables and tree, and keeps the address in step with them.

import { makeToggle } from "./theme.js";
import { Model } from "./model.js";
import { Timeline } from "./timeline.js";
import { Ranges } from "./ranges.js";
import { Tables } from "./table.js";
import { Icicle } from "./icicle.js";
import { makeMemoryChart } from "./memory_chart.js";
import { listenToKeys, makeHelp } from "./keys.js";
import { Sections, restoreParts, say, stateOf, takeData } from "./sections.js";

const page = document.documentElement;
const data = takeData("report");
const FAMILIES = { kernels: "tables", operators: "tables", regions: "tables", calls: "tables" };
const parts = { timeline: null, tables: null, icicle: null };
const sections = new Sections({
  state: () => stateOf(parts),
  restore: (wanted, section) => {
    restoreParts(parts, wanted, section in FAMILIES ? section : null);
    if (ranges) ranges.follow();
  },
  places: FAMILIES,
});
const keep = () => sections.keep();

makeToggle(document.getElementById("theme"));
let ranges = null;
const moved = () => { keep(); if (ranges) ranges.follow(); };
if (document.getElementById("lanes")) parts.timeline = new Timeline(new Model(data), { view: moved, say, chosen: keep });
const { timeline } = parts;
if (document.getElementById("rows")) {
  parts.tables = new Tables(data, {
    changed: keep,
    say,
    chosen: (row) => { if (timeline) timeline.light(timeline.model.thingsOf(row)); keep(); },
    wantsTimeline: () => {
      document.getElementById("timeline")?.scrollIntoView();
      if (timeline) { timeline.show(0, timeline.model.span); timeline.place.focus({ preventScroll: true }); }
    },
  });
}
if (document.getElementById("icicle")) parts.icicle = new Icicle(data, { changed: keep, say });
if (document.getElementById("memory-chart")) makeMemoryChart(data);
listenToKeys({ help: makeHelp(), sections: sections.names, timelineKey: (event) => timeline && timeline.key(event), nowIn: () => sections.current });

sections.watch();
sections.restore();
page.dataset.drawn = performance.now().toFixed(0);

if (timeline) {
  await timeline.model.read(data, (table) => {
    timeline.layout();
    timeline.draw();
    if (table === "work" || !page.dataset.events) page.dataset.events = performance.now().toFixed(0);
  });
  timeline.draw();
  if (data.events) ranges = new Ranges(data, timeline);
}
sections.restore(false);
if (ranges) ranges.follow();
page.dataset.complete = performance.now().toFixed(0);
