// Maps a span of time to pixels: positions of moments, zooming, and the ticks below.

export class Axis {
  /** Times from 0 to `end`; what is shown is at least `least` long. */
  constructor(end, least = 4) {
    Object.assign(this, { end, least, from: 0, to: end, width: 1 });
  }

  get span() { return this.to - this.from; }
  get scale() { return this.width / this.span; }
  x(time) { return (time - this.from) * this.scale; }
  time(x) { return this.from + x / this.scale; }

  /** Shows a stretch, as far as it lies within the whole. */
  show(from, to) {
    const span = Math.min(this.end, Math.max(to - from, this.least));
    const middle = to - from < this.least ? (from + to - span) / 2 : from;
    this.from = Math.min(Math.max(0, middle), this.end - span);
    this.to = this.from + span;
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    this.show(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  move(by) { this.show(this.from + by, this.to + by); }

  /** Round times in what is shown, `room` pixels apart at least, in units of `unit`. */
  marks(room, unit = 1) {
    const least = (room / this.scale) * unit;
    const power = 10 ** Math.floor(Math.log10(least));
    const apart = power * [1, 2, 5, 10].find((step) => step * power >= least * 0.999);
    const found = [];
    for (let count = Math.ceil((this.from * unit) / apart); count * apart <= this.to * unit; count += 1) found.push(count * apart);
    return { apart, times: found };
  }
}

/** A moment as written at a mark: as many digits as marks that far apart need. */
export function momentText(ns, apart) {
  const [scale, unit] = ns >= 1e9 || apart >= 1e8 ? [1e9, "s"] : ns >= 1e6 || apart >= 1e5 ? [1e6, "ms"] : ns >= 1e3 || apart >= 100 ? [1e3, "µs"] : [1, "ns"];
  const digits = Math.max(0, -Math.floor(Math.log10(apart / scale) + 1e-9));
  return `${(ns / scale).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${unit}`;
}
