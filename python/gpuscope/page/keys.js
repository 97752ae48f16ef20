// Actions of keys, and their list.

const KEYS = [
  ["?", "this list"], ["/", "search where the focus is, or in what is in view: timeline, table or tree"],
  ["1 … 9", "to the sections"], ["t", "light or dark"],
  ["w s", "timeline: zoom in, out; also + and −"], ["a d", "move; also ← and →; with Shift by half of the view"], ["f", "fit what is chosen or measured, or all"], ["0", "the whole recording"],
  [", .", "step before, next step"], ["[ ]", "event before, after, of the same name"], ["n N", "next found, found before"], ["Enter", "choose the first event in view"],
  ["Shift and drag", "measure"], ["↑ ↓", "rows of a table, boxes of the tree"], ["Esc", "choose nothing"],
];

/** Fills the list of keys, of the report where no other is given, and lets ? and the button open it. */
export function makeHelp(shown = KEYS) {
  const dialog = document.getElementById("help"), list = document.getElementById("help-keys");
  for (const [keys, what] of shown) {
    const term = document.createElement("dt");
    for (const key of keys.split(" ")) term.append(/^(and|…)$/.test(key) ? ` ${key} ` : Object.assign(document.createElement("kbd"), { textContent: key }), " ");
    list.append(term, Object.assign(document.createElement("dd"), { textContent: what }));
  }
  document.getElementById("keys").addEventListener("click", () => dialog.showModal());
  return () => dialog.showModal();
}

const SEARCHES = { timeline: "find", tables: "filter", tree: "tree-find" };

/** Keys that count wherever the focus is, but in a field of text. */
export function listenToKeys({ help, sections = [], timelineKey = () => {}, nowIn = () => "" }) {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented) return;
    if (event.target.closest("input, select, textarea, dialog[open]")) return;
    if (event.key === "?") { event.preventDefault(); help(); return; }
    if (event.key === "t") { document.getElementById("theme").click(); return; }
    if (event.key === "/") {
      const search = document.getElementById(SEARCHES[event.target.closest("main > section")?.id || nowIn()] || "find") || document.getElementById("filter");
      if (search) { event.preventDefault(); search.focus(); }
      return;
    }
    if (event.target.closest("[role=grid], #rows, #icicle")) return;
    const number = "123456789".indexOf(event.key);
    if (number >= 0 && number < sections.length) { location.hash = `#/${sections[number]}`; return; }
    if ("fwasdAD,.[]nN+-=0".includes(event.key) && !event.target.closest("#lanes")) timelineKey(event);
  });
}
