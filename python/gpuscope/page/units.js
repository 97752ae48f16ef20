// How figures are written, as units.py writes them: three digits and a unit.

const TIMES = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];

/** A number with so many digits behind the point; exact halves go to the even neighbour, as Python's do. */
export function fixed(value, digits) {
  const text = value.toFixed(digits); // rounds halves away from 0
  const isHalf = Math.abs(value) * 2 ** (digits + 1) % 2 === 1;
  return isHalf && text.at(-1) % 2 ? (value * (1 - Number.EPSILON)).toFixed(digits) : text;
}

/** Three digits, those behind the point as far as there are fewer before it. */
export function rounded(value) {
  const size = Math.abs(value);
  return fixed(value, size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

export function timeText(ns) {
  if (ns === 0) return "0 s";
  const seconds = ns / 1e9; // as in units.py, so that halves round alike
  const [scale, unit] = TIMES.find(([each]) => Math.abs(seconds) >= 0.9995 * each) || TIMES[3];
  return unit === "ns" ? `${Math.round(ns)} ns` : `${rounded(seconds / scale)} ${unit}`;
}

export function sizeText(bytes) {
  let left = Math.abs(bytes), unit = 0;
  while (left >= (unit ? 999.5 : 1024) && unit < SIZES.length - 1) { left /= 1024; unit += 1; }
  return `${bytes < 0 ? "-" : ""}${unit === 0 ? left.toFixed(0) : rounded(left)} ${SIZES[unit]}`;
}

export const countText = (count) => count.toLocaleString("en");
export const shareText = (share) => `${fixed(100 * share, share < 0.0995 ? 2 : 1)} %`;

/** A value in a unit of its own, "" for none. */
export function valueText(value, unit) {
  if (unit === "B" || unit === "byte") return sizeText(value);
  const [scale, letter] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([each]) => Math.abs(value) >= each) || [1, ""];
  return `${rounded(value / scale)} ${letter}${unit}`.trim();
}

/** What a search asks for: a text as it is, or a regular expression between slashes; null for one that is none. */
export function matcher(query) {
  const text = query.trim();
  if (text === "") return () => true;
  const inside = /^\/(.+)\/?$/.exec(text);
  if (inside) {
    try {
      const pattern = new RegExp(inside[1].replace(/\/$/, ""), "i");
      return (name) => pattern.test(name);
    } catch { return null; }
  }
  const wanted = text.toLowerCase();
  return (name) => name.toLowerCase().includes(wanted);
}
