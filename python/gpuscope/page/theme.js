// Colors: the style sheet's, for canvases, and the color of a name.

export const SLOTS = 12;
const SHADES = 3; // of each slot, so that neighbours of one category differ
const PALER = 0.2;
export const GRAY = SLOTS * SHADES; // the slot without a category
const NAMES = ["paper", "ink", "faint", "line", "panel", "focus", "held", "rest", "before", "warn", "good"];
const root = document.documentElement;
const listeners = [];

/**
 * The colors of the theme that is on, resolved: by name, `slots` for the palette, each slot in its shades, and `inks` for
 * text on each of them.
 */
export const colors = {};

function resolve() {
  const probe = document.createElement("span");
  root.append(probe);
  const color = (name) => { probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; };
  for (const name of NAMES) colors[name] = color(name);
  const slots = Array.from({ length: SLOTS }, (_, slot) => color(`c${slot}`));
  colors.slots = Array.from({ length: SLOTS * SHADES }, (_, slot) => mixed(slots[slot % SLOTS], colors.paper, PALER * Math.floor(slot / SLOTS)));
  colors.slots[GRAY] = colors.rest;
  colors.inks = colors.slots.map(inkOn);
  probe.remove();
}

const channels = (color) => color.match(/[\d.]+/g).slice(0, 3).map(Number);

/** A color that lies between two; 0 is the first. */
export function mixed(one, other, share) {
  const ends = channels(other);
  return `rgb(${channels(one).map((part, at) => Math.round(part + (ends[at] - part) * share)).join(", ")})`;
}

/** Black or white, whichever can be read on a color. */
export const inkOn = (color) => (luminance(color) > 0.19 ? "#101418" : "#ffffff");

function luminance(color) {
  const [red, green, blue] = channels(color).map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** The slot of a name, numbers at its end left out: always the same one, on every page (FNV-1a). */
export function slotOf(name) {
  let hash = 0x811c9dc5;
  const length = /#\d+$/.test(name) ? name.lastIndexOf("#") : name.length;
  for (let place = 0; place < length; place += 1) hash = Math.imul(hash ^ name.charCodeAt(place), 0x01000193);
  return ((hash ^ (hash >>> 15)) >>> 0) % SLOTS;
}

/** The slot of a category of a legend, -1 for none, in the shade of a name. */
export const slotIn = (legend, category, name) => (category < 0 ? GRAY : legend[category][2] + SLOTS * (slotOf(name) % SHADES));

const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
export const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemIsDark.matches);

function changed() {
  resolve();
  for (const listener of listeners) listener();
}

/** Calls back when colors change. */
export function whenThemeChanges(listener) { listeners.push(listener); }

/** Lets a button choose the theme, which is kept for the next time. */
export function makeToggle(button) {
  const show = () => { button.textContent = isDark() ? "Light" : "Dark"; button.setAttribute("aria-label", `${button.textContent} theme`); };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("gpuscope-theme", root.dataset.theme); } catch { /* a page without storage */ }
    show();
    changed();
  });
  whenThemeChanges(show);
  show();
}

systemIsDark.addEventListener("change", changed);
matchMedia("print").addEventListener("change", changed); // paper is light
resolve();
