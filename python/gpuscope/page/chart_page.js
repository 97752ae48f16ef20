// Common parts of pages with a chart: keys, announcements and printing.

export const CHART_KEYS = [
  ["?", "this list"], ["t", "light or dark"], ["← →", "point before, next point of the curve; with Shift by ten"], ["↑ ↓", "to another curve"],
  ["Home End", "first and last point"], ["+ −", "zoom"], ["0", "fit"], ["a", "all values, with those far off and whole intervals; again, what matters"], ["Esc", "choose nothing"],
  ["drag", "zoom into a part"], ["Shift and drag", "move"],
];

export const say = (text) => { document.getElementById("said").textContent = text; };

/** What is folded away is on paper too. */
export function openForPrint(details) {
  let isOpen = false;
  addEventListener("beforeprint", () => { isOpen = details.open; details.open = true; });
  addEventListener("afterprint", () => { details.open = isOpen; });
}
