// Events, their names and related events for the timeline, read from the page's columns.

import { slotIn } from "./theme.js";
import { breathe, readColumn, takeColumn } from "./data.js";
import { Lane, firstNotBefore } from "./lanes.js";

const ORDER = ["work", "idle", "calls", "regions", "samples", "functions"];
const KINDS_ON_THE_MAP = new Set(["stream"]);
const MOST_ON_THE_MAP = 4;

/** A recording, or what of several lies on one axis, as the timeline sees it. */
export class Model {
  constructor(data) {
    Object.assign(this, { span: data.span, tick: data.tick_ns, strings: data.strings, windows: data.windows, rows: data.rows });
    this.names = data.things.names;
    this.ofRows = data.things.rows;
    this.notes = data.things.notes;
    this.categories = data.things.categories;
    this.legend = data.things.legend;
    this.slots = Uint8Array.from(this.names, (id, thing) => slotIn(this.legend, this.categories[thing], this.strings[id]));
    this.groups = data.groups.map((group) => ({ ...group, lanes: group.lanes.map((lane) => new Lane(lane, group.kind, data.span)) }));
    this.lanes = this.groups.flatMap((group) => group.lanes);
    const streams = this.groups.filter((group) => KINDS_ON_THE_MAP.has(group.kind)).flatMap((group) => group.lanes);
    this.mapped = (streams.length ? streams : this.lanes.slice(0, 1)).slice(0, MOST_ON_THE_MAP);
    this.links = this.paths = null;
    const sums = (list) => { let sum = 0; return Float64Array.from(list, (value) => (sum += value)); };
    this.steps = data.steps && { starts: sums(data.steps.starts), lengths: Float64Array.from(data.steps.lengths) };
    this.curves = data.series.map(({ title, unit, ranges, ticks, values, most }) => ({ title, unit, ranges, ticks: sums(ticks), values, most: unit === "%" ? 100 : most || values.reduce((highest, value) => Math.max(highest, value), 0) }));
  }

  nameIdOf(thing) { return this.names[thing]; }
  nameOf(thing) { return this.strings[this.names[thing]]; }
  rowOf(thing) { return this.ofRows[thing]; }
  noteOf(thing) { return this.notes[thing] < 0 ? "" : this.strings[this.notes[thing]]; }
  /** What the tables call it: all steps together, and driver calls as the runtime does. */
  rowNameIdOf(thing) { return this.ofRows[thing] < 0 ? this.names[thing] : this.rows.full[this.ofRows[thing]]; }
  /** Its own name with nothing left out. */
  fullNameOf(thing) { return this.strings[this.rows.name[this.ofRows[thing]] === this.names[thing] ? this.rowNameIdOf(thing) : this.names[thing]]; }

  /** The regions that launched an event of the work, outermost first; "" for none. */
  pathOf({ lane, place }) {
    const text = lane.table === "work" && this.paths ? this.paths[lane.first + place] : 0;
    return text ? this.strings[text - 1] : "";
  }

  /** The event that is a row of a table. */
  eventOf(table, row) {
    const lane = this.lanes.find((each) => each.table === table && row >= each.first && row < each.first + each.count);
    return lane && lane.isReady ? { lane, place: row - lane.first } : null;
  }

  /** Where an event is, whatever others a model has: the number of its lane, and its start. */
  placeOf({ lane, place }) { return { number: this.lanes.indexOf(lane), start: lane.start[place] }; }

  /** The event that is there; null where the model has none. */
  eventAt({ number, start }) {
    const lane = this.lanes[number], place = lane && lane.isReady ? firstNotBefore(lane.start, start) : -1;
    return place >= 0 && lane.start[place] === start ? { lane, place } : null;
  }

  /** Whether every event of a stretch is there. */
  isWholeIn(from, to) { return this.windows.length === 0 || this.windows.some(([first, last]) => from >= first && to <= last); }

  /** Which things are of a row of the tables. */
  thingsOf(row) { return row < 0 ? null : Uint8Array.from(this.ofRows, (each) => (each === row ? 1 : 0)); }

  /** Reads the columns; `textOf` gives the text of each by its name. */
  async read(data, whenRead, textOf = takeColumn) {
    const names = Object.keys(data.columns);
    for (const table of ORDER) {
      if (!names.includes(`${table}-start`)) continue;
      const column = (name) => readColumn(textOf(`${table}-${name}`), data.columns[`${table}-${name}`], data.firsts[table]);
      const columns = { start: await column("start"), length: await column("length"), thing: await column("thing") };
      for (const lane of this.lanes) if (lane.table === table) { lane.fill(columns); if (lane.count > 20000) await breathe(); }
      whenRead(table);
    }
    const whole = (name) => (names.includes(name) ? readColumn(textOf(name), data.columns[name]) : null);
    [this.links, this.paths] = [await whole("work-call"), await whole("work-path")];
  }
}
