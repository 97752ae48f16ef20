// What changed between two programs: the tree in the colors of its differences, two steps over each other, the tables.

import { countText, fixed, shareText, timeText } from "./units.js";
import { colors, inkOn, makeToggle, mixed } from "./theme.js";
import { boxIn } from "./pen.js";
import { Model } from "./model.js";
import { Timeline } from "./timeline.js";
import { Tables } from "./table.js";
import { Icicle } from "./icicle.js";
import { listenToKeys, makeHelp } from "./keys.js";
import { Sections, restoreParts, say, stateOf, takeData } from "./sections.js";

const page = document.documentElement;
const data = takeData("diff");
const MORE = 1, LESS = 7; // slots of the palette
const WHOLE = 500; // rows, of which a table as long as this has no scroll box on wide pages
const STRONGEST = 0.5; // of the larger side: what differs by as much has the full color
const BOTH = { larger: "the larger of both sides", after: "time after", before: "time before" };

const signed = (ns) => `${ns > 0 ? "+" : ""}${timeText(ns)}`;
const shareOf = (more) => (more === null ? "new" : more <= -1 ? "gone" : more >= 9.995 ? `${countText(Math.round(more + 1))}×` : `${more >= 0 ? "+" : ""}${fixed(100 * more, 1)} %`);
const ratioText = (before, after) => (before === 0 ? (after === 0 ? "" : "new") : shareOf(after / before - 1));
const callsText = (count) => (Math.abs(count - Math.round(count)) < 0.005 ? countText(Math.round(count)) : count.toFixed(2));
const endText = (ns) => (ns === null ? "unknown" : signed(ns));

class DiffIcicle extends Icicle {
  get kinds() { return BOTH; }
  measures() { return Object.keys(BOTH); }
  firstOf() { return "larger"; }

  drawBox(pen, each, x, y, wide, high, edge) {
    const { before, after } = this.sidesOf(each), most = Math.max(before, after, 1), share = (after - before) / most;
    const fill = mixed(colors.rest, colors.slots[share > 0 ? MORE : LESS], Math.min(1, Math.abs(share) / STRONGEST));
    const words = share === 0 ? "" : `  ${ratioText(before, after)}`;
    boxIn(pen, x, y, wide, high, { fill, ink: inkOn(fill) }, `${each.name}${words}`, edge);
  }

  /** Both times of a box: of an inverted tree those of what lies in it. */
  sidesOf(each) {
    if (!this.isInverted) return each.node;
    const sum = (key) => each.inside.reduce((total, node) => total + this.aloneOf(node, key), 0);
    return (each.sides ??= { before: sum("before"), after: sum("after") });
  }

  factsOf(each) {
    const { before, after } = this.sidesOf(each), { row } = each.node;
    const facts = [["before", timeText(before)], ["after", timeText(after)], ["difference", `${signed(after - before)} ${ratioText(before, after)}`], ["of the tree", shareText(each.value / Math.max(1, this.top.value))]];
    if (this.isInverted || row < 0) return facts;
    if (!each.node.children.length) return [...facts, ...parts.tables.beyond(row)];
    const { rows, verdicts } = parts.tables; // which has what it takes alone
    return [...facts, ["alone", `${timeText(rows.before[row])} to ${timeText(rows.after[row])}, ${verdicts[rows.verdict[row] - 1]}`]];
  }
}

class DiffTables extends Tables {
  get everyColumn() {
    return [
      { key: "name", title: "name", wide: "minmax(min(14rem, 44vw), 1fr)" },
      { key: "delta", title: "difference", wide: "6.6rem", text: signed, isTime: true },
      { key: "ratio", title: "%", wide: "6rem", text: shareOf, unknown: Infinity, help: "of the time before" },
      { key: "verdict", title: "verdict", wide: "8.6rem", text: (value) => this.verdicts[value - 1], isText: true },
      { key: "before", title: "before", wide: "5.8rem", text: timeText },
      { key: "after", title: "after", wide: "5.8rem", text: timeText },
      { key: "low", title: "at least", wide: "6.2rem", text: endText, isTime: true, unknown: -Infinity, help: "where the 95 % interval of the difference begins" },
      { key: "high", title: "at most", wide: "6.2rem", text: endText, isTime: true, unknown: Infinity, help: "where it ends" },
      { key: "calls_before", title: "calls before", wide: "6.6rem", text: callsText },
      { key: "calls_after", title: "calls after", wide: "6.4rem", text: callsText },
    ];
  }
  get verdicts() { return this.rows.verdicts; }
  get firstSort() { return "size"; }
  isLeftOut() { return false; }
  sortWithout() { return "size"; }
  draw() {
    this.place.classList.toggle("whole", this.order.length <= WHOLE);
    super.draw();
  }
  addShares() { /* differences add up, shares of them do not */ }

  /** What is known of a row beside both times. */
  beyond(row) {
    const { rows } = this, counts = [rows.calls_before[row], rows.calls_after[row]];
    return [
      ["verdict", this.verdicts[rows.verdict[row] - 1]],
      ...(rows.low[row] === null && rows.high[row] === null ? [] : [["95 %", `${endText(rows.low[row])} to ${endText(rows.high[row])}`]]),
      ...(counts[0] || counts[1] ? [[`calls a ${data.unit}`, counts[0] === counts[1] ? callsText(counts[0]) : `${callsText(counts[0])} before, ${callsText(counts[1])} after`]] : []),
      ...(rows.slower[row] && rows.oftener[row] ? [["of that each slower", signed(rows.slower[row])], ["and more often", signed(rows.oftener[row])]] : []),
    ];
  }

  factsOf(row) {
    const { rows } = this;
    return [["before", timeText(rows.before[row])], ["after", timeText(rows.after[row])], ["difference", `${signed(rows.delta[row])} ${ratioText(rows.before[row], rows.after[row])}`], ...this.beyond(row)];
  }
}

const parts = { timeline: null, tables: null, icicle: null };
const sections = new Sections({ state: () => stateOf(parts), restore: (wanted) => restoreParts(parts, wanted, null) });
const keep = () => sections.keep();

/** Lights what a row is of, in both steps. */
function light(row) {
  const { timeline } = parts;
  if (!timeline) return;
  const wanted = new Set(row < 0 ? [] : data.rows.lights[row]);
  timeline.light(row < 0 ? null : Uint8Array.from(timeline.model.names, (name) => (wanted.has(name) ? 1 : 0)));
}

makeToggle(document.getElementById("theme"));
if (document.getElementById("lanes")) parts.timeline = new Timeline(new Model(data), { view: keep, say, chosen: keep });
const { timeline } = parts;
if (document.getElementById("rows")) {
  parts.tables = new DiffTables(data, {
    changed: keep,
    say,
    chosen: (row) => { light(row); keep(); },
    wantsTimeline: () => {
      document.getElementById("timeline")?.scrollIntoView();
      if (timeline) { timeline.show(0, timeline.model.span); timeline.place.focus({ preventScroll: true }); }
    },
  });
}
if (document.getElementById("icicle")) parts.icicle = new DiffIcicle(data, { changed: keep, say });
listenToKeys({ help: makeHelp(), sections: sections.names, timelineKey: (event) => timeline && timeline.key(event), nowIn: () => sections.current });
sections.watch();
sections.restore();
if (timeline) {
  await timeline.model.read(data, () => { timeline.layout(); timeline.draw(); });
  timeline.draw();
}
sections.restore(false);
page.dataset.complete = performance.now().toFixed(0);
