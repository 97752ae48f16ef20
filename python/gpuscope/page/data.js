// Reads columns written by planes.py: bytes, deflated, in base64. One column at a time, so that the page can draw
// between them.

/** The bytes of a text in base64. */
function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const chars = atob(text), bytes = new Uint8Array(chars.length);
  for (let place = 0; place < chars.length; place += 1) bytes[place] = chars.charCodeAt(place);
  return bytes;
}

/** The bytes that a zlib stream holds; `length` of them are there. */
async function inflate(bytes, length) {
  const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate")).getReader();
  const whole = new Uint8Array(length);
  let place = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return whole;
    whole.set(value, place);
    place += value.length;
  }
}

/**
 * The numbers that byte planes hold: Float64Array where they may pass 2^32, otherwise the smallest type that has room.
 * `coding` is as in planes.py; `firsts` are the rows at which lanes begin.
 */
export function unpack(bytes, { rows, planes, coding }, firsts = []) {
  const wide = planes > 4 || coding === "times";
  const values = wide ? new Float64Array(rows) : coding === "steps" || planes > 2 ? new Uint32Array(rows)
    : planes > 1 ? new Uint16Array(rows) : new Uint8Array(rows);
  values.set(bytes.subarray(0, rows));
  for (let plane = 1, scale = 256; plane < planes; plane += 1, scale *= 256) {
    const offset = plane * rows;
    for (let row = 0; row < rows; row += 1) {
      const high = bytes[offset + row];
      if (high !== 0) values[row] += high * scale;
    }
  }
  if (coding === "times") addUp(values, firsts);
  if (coding === "steps") {
    let last = 0;
    for (let row = 0; row < rows; row += 1) {
      const step = values[row];
      last += step & 1 ? -(step >>> 1) - 1 : step >>> 1;
      values[row] = last;
    }
  }
  return values;
}

function addUp(values, firsts) {
  const starts = new Set(firsts);
  let last = 0;
  for (let row = 0; row < values.length; row += 1) {
    last = starts.has(row) ? values[row] : last + values[row];
    values[row] = last;
  }
}

/** Lets the browser draw. */
export const breathe = () => new Promise((done) => { setTimeout(done, 0); });

/** The text of a column of the page by its name, which is then taken out of the document to free it. */
export function takeColumn(name) {
  const island = document.getElementById(`column-${name}`);
  island.remove();
  return island.textContent.trim();
}

/** The numbers of a column from its text. */
export async function readColumn(text, facts, firsts) {
  const values = unpack(await inflate(bytesOf(text), facts.rows * facts.planes), facts, firsts);
  await breathe();
  return values;
}
