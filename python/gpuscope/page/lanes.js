// Events of one lane, in order of time, and their sums for zoomed-out views.

const BUCKETS = 16384;
const MANY = 20000;

/** The first place whose value is not before `wanted`. */
export function firstNotBefore(values, wanted, low = 0, high = values.length) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < wanted) low = middle + 1; else high = middle;
  }
  return low;
}

export class Lane {
  /** `sums` come with the page where the lane has not all of its events. */
  constructor({ table, first, end, total, sums }, kind, span) {
    Object.assign(this, { table, first, total, kind, span, count: end - first, start: null, length: null, thing: null });
    this.isPart = Boolean(sums);
    this.sums = sums && { busy: Float32Array.from(sums.busy, (value) => value / 255), thing: Uint32Array.from(sums.thing), count: Uint32Array.from(sums.count) };
  }

  get isReady() { return this.start !== null; }

  fill(columns) {
    const end = this.first + this.count;
    this.start = columns.start.subarray(this.first, end);
    this.length = columns.length.subarray(this.first, end);
    this.thing = columns.thing.subarray(this.first, end);
    let until = 0;
    this.reach = Float64Array.from(this.start, (_, place) => (until = Math.max(until, this.end(place)))); // of all so far: some may overlap
    if (!this.sums && this.count > MANY) this.sums = summed(this, BUCKETS);
  }

  end(place) { return this.start[place] + this.length[place]; }

  /**
   * The places of the events that touch a stretch: the first, and the one behind the last. Where events overlap, some
   * between these may have ended before.
   */
  inside(from, to) {
    const first = Math.min(firstNotBefore(this.start, from), firstNotBefore(this.reach, Math.floor(from) + 1));
    return [first, firstNotBefore(this.start, to, first)];
  }

  /** About how many events begin in a stretch, and how much of it they fill, by the sums. */
  about(from, to) {
    const { busy, count } = this.sums, size = this.span / count.length, found = { count: 0, filled: 0 };
    for (let bucket = Math.max(0, Math.floor(from / size)); bucket < Math.min(count.length, Math.ceil(to / size)); bucket += 1) {
      const inside = Math.min(to, (bucket + 1) * size) - Math.max(from, bucket * size);
      found.count += count[bucket] * (inside / size);
      found.filled += busy[bucket] * inside;
    }
    return found;
  }

  /** The event at a moment, or the nearest within `slack`; -1 without. */
  at(moment, slack) {
    const after = firstNotBefore(this.start, moment + 1e-9);
    for (let place = after - 1; this.reach[place] >= moment; place -= 1) if (this.end(place) >= moment) return place;
    const before = after > 0 ? moment - this.end(after - 1) : Infinity;
    const next = after < this.count ? this.start[after] - moment : Infinity;
    if (Math.min(before, next) > slack) return -1;
    return before <= next ? after - 1 : after;
  }
}

/** How many events of lanes touch a stretch, and how much of it they fill together: what overlaps counts once. */
export function together(lanes, from, to) {
  const turns = lanes.map((lane) => { const [at, last] = lane.inside(from, to); return { lane, at, last }; });
  let count = 0, filled = 0, until = from;
  for (;;) {
    let next = null;
    for (const turn of turns) if (turn.at < turn.last && (!next || turn.lane.start[turn.at] < next.lane.start[next.at])) next = turn;
    if (!next) return { count, filled };
    const start = next.lane.start[next.at], end = Math.min(next.lane.end(next.at), to);
    if (end > until) { filled += end - Math.max(start, until); until = end; }
    if (start >= from || end > from) count += 1;
    next.at += 1;
  }
}

/** Of equally long buckets the share that is filled, how many events begin, and the thing of the longest one. */
function summed(lane, buckets) {
  const busy = new Float32Array(buckets), thing = new Uint32Array(buckets), count = new Uint32Array(buckets), longest = new Float64Array(buckets);
  const size = lane.span / buckets;
  for (let place = 0; place < lane.count; place += 1) {
    const start = lane.start[place], length = lane.length[place], what = lane.thing[place];
    let bucket = Math.min(buckets - 1, Math.floor(start / size));
    count[bucket] += 1;
    for (let left = length, from = start; ; bucket += 1) {
      const part = Math.min(left, (bucket + 1) * size - from);
      busy[bucket] += part;
      if (part >= longest[bucket]) { longest[bucket] = part; thing[bucket] = what; }
      left -= part;
      from += part;
      if (left <= 0 || bucket >= buckets - 1) break;
    }
  }
  for (let bucket = 0; bucket < buckets; bucket += 1) busy[bucket] = Math.min(1, busy[bucket] / size);
  return { busy, thing, count };
}
