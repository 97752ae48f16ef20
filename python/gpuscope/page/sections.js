// The sections of a page, the one in view, and the address that restores a view.

const WAIT = 150; // ms after a change, before the address follows

/** The data of a page by the id of its element, which is taken out to free its text. */
export function takeData(id) {
  const island = document.getElementById(id), data = JSON.parse(island.textContent);
  island.remove();
  return data;
}

/** Says something to those who do not see the page. */
export const say = (text) => { document.getElementById("said").textContent = text; };

/** As far as the navigation says, and the address: #/section?what=is&shown=there. */
export class Sections {
  /**
   * `state` gives what is shown as URLSearchParams, `restore` takes such and the section wanted; `places` are other
   * names of sections.
   */
  constructor({ state, restore, places = {} }) {
    Object.assign(this, { state, restoreState: restore, places, isRestoring: false, waiting: 0, address: location.hash });
    this.names = [...document.querySelectorAll("main > section")].map((section) => section.id);
    this.links = [...document.querySelectorAll("nav a")];
    this.current = this.names[0];
    addEventListener("scroll", () => requestAnimationFrame(() => this.watch()), { passive: true });
    addEventListener("hashchange", () => this.restore());
  }

  /** Lets the address follow what is shown. */
  keep() {
    if (this.isRestoring) return;
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => {
      if (location.hash !== this.address) return;  // the reader navigates: hashchange follows
      const text = this.state().toString();
      history.replaceState(null, "", `#/${this.current}${text ? `?${text}` : ""}`);
      this.address = location.hash;
    }, WAIT);
  }

  /** Shows what the address says. */
  restore(goes = true) {
    this.address = location.hash;
    const [, section, text] = /^#\/(\w*)\??(.*)$/.exec(location.hash) || [];
    if (section === undefined) return;
    this.isRestoring = true;
    this.restoreState(new URLSearchParams(text), section);
    this.isRestoring = false;
    const place = document.getElementById(this.places[section] || section);
    if (goes && place) place.scrollIntoView({ behavior: "auto" });
  }

  /** The section that is at the top of the window is the current one. */
  watch() {
    const middle = innerHeight * 0.3;
    const found = this.names.filter((id) => document.getElementById(id).getBoundingClientRect().top <= middle).pop() || this.names[0];
    for (const link of this.links) if (link.getAttribute("href") === `#/${found}`) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
    if (found !== this.current) { this.current = found; this.keep(); }
  }
}

/** What of a timeline, tables and a tree the address says; each may be null. */
export function stateOf({ timeline, tables, icicle }) {
  const found = new URLSearchParams();
  if (timeline && timeline.axis.span < 0.9999 * timeline.model.span) found.set("t", `${Math.round(timeline.axis.from)}-${Math.round(timeline.axis.to)}`);
  if (timeline && timeline.wanted) found.set("event", `${timeline.wanted.number}.${timeline.wanted.start}`);
  if (tables) {
    if (tables.family !== tables.tabs[0].dataset.family) found.set("tab", tables.family);
    if (tables.sort.key !== tables.firstSort || tables.sort.up) found.set("sort", (tables.sort.up ? "-" : "") + tables.sort.key);
    if (tables.filterText) found.set("q", tables.filterText);
    if (tables.chosen >= 0) found.set("row", tables.chosen);
  }
  if (icicle && icicle.way) found.set("tree", icicle.way);
  if (icicle && icicle.by !== icicle.first) found.set("by", icicle.by);
  if (icicle && icicle.isInverted) found.set("invert", "1");
  return found;
}

/** Shows what `stateOf` said; `family` is the table that the section names. */
export function restoreParts({ timeline, tables, icicle }, wanted, family) {
  if (timeline && wanted.has("t")) {
    const [from, to] = wanted.get("t").split("-").map(Number);
    if (from >= 0 && to > from) timeline.show(from, to, false);
  }
  if (timeline && wanted.has("event")) {
    const [number, start] = wanted.get("event").split(".").map(Number);
    if (number >= 0 && start >= 0) timeline.seek({ number, start });
  }
  if (tables) {
    const sort = wanted.get("sort"), tab = family || wanted.get("tab");
    if (wanted.has("q")) { tables.filterText = wanted.get("q"); document.getElementById("filter").value = tables.filterText; }
    if (tab || sort || wanted.has("q")) tables.open(tab || tables.family, sort ? { key: sort.replace(/^-/, ""), up: sort.startsWith("-") } : undefined);
    const row = wanted.has("row") ? Number(wanted.get("row")) : -1;
    if (row >= 0 && row < tables.rows.name.length) { tables.choose(row); tables.reveal(row); }
  }
  if (icicle && ["by", "invert", "tree"].some((name) => wanted.has(name))) {
    icicle.measureBy(wanted.get("by") || icicle.first);
    if (wanted.has("invert") !== icicle.isInverted) document.getElementById("tree-invert").click();
    if (wanted.has("tree")) icicle.follow(wanted.get("tree"));
  }
}
