// Events that the page contains only as sums: fetched from its server when the view is zoomed in enough.

import { Model } from "./model.js";

const MOST_FETCHED = 20000; // events at a time
const AROUND = 0.5; // of the view, fetched too on each side if that is not too much
const QUIET = 150; // ms without a change of the view, before a request

export class Ranges {
  /** `data.events` is the server's address of them; `timeline` shows the model of `data`. */
  constructor(data, timeline) {
    Object.assign(this, { data, timeline, base: timeline.model, guest: null, waiting: 0, asked: 0 });
  }

  /** Shows the events of the view, and asks for them where they are not there. */
  follow() {
    clearTimeout(this.waiting);
    const { axis } = this.timeline, isIn = (windows) => windows.some(([from, to]) => axis.from >= from && axis.to <= to);
    if (isIn(this.base.windows)) this.use(this.base, "kept");
    else if (this.guest && isIn(this.guest.windows)) this.use(this.guest, "fetched");
    else {
      this.use(this.base, "asked");
      this.waiting = setTimeout(() => this.fetch(), QUIET);
    }
  }

  /** About how many events lie in a stretch. */
  count(from, to) {
    const inside = (lane) => {
      if (lane.isPart) return lane.about(from, to).count;
      const [first, last] = lane.isReady ? lane.inside(from, to) : [0, 0];
      return last - first;
    };
    return this.base.lanes.reduce((sum, lane) => sum + inside(lane), 0);
  }

  async fetch() {
    const { axis } = this.timeline, beside = axis.span * AROUND;
    const stretches = [[axis.from - beside, axis.to + beside], [axis.from, axis.to]].map(([from, to]) => [Math.max(0, Math.floor(from)), Math.min(this.base.span, Math.ceil(to))]);
    const stretch = stretches.find(([from, to]) => this.count(from, to) <= MOST_FETCHED);
    if (!stretch) { this.rest(); return; }
    const turn = (this.asked += 1);
    let found = null;
    try {
      const answer = await fetch(`${this.data.events}?from=${stretch[0]}&to=${stretch[1]}`);
      if (answer.ok) found = await answer.json();
    } catch { /* the server has ended */ }
    if (turn !== this.asked) return;
    if (!found) { this.rest(); return; }
    const guest = new Model({ ...this.data, ...found, windows: [...this.base.windows, stretch] });
    guest.mapped = this.base.mapped;
    await guest.read(found, () => {}, (name) => found.texts[name]);
    this.guest = guest;
    this.follow();
  }

  /** No others come: what is here stays. */
  rest() {
    const { dataset } = this.timeline.place;
    if (dataset.events === "asked") dataset.events = "kept";
  }

  /**
   * Lets the timeline show a model. `state` says whose events they are: "kept" by the page, "fetched", or kept while
   * others are "asked" for.
   */
  use(model, state) {
    this.timeline.place.dataset.events = state;
    if (this.timeline.model !== model) this.timeline.use(model);
  }
}
