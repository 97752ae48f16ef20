// Makes elements of the document around the canvases.

export const element = (tag, properties = {}, attributes = {}) => {
  const made = Object.assign(document.createElement(tag), properties);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};

/** Fills a place with what colors say: categories by number, each where it runs, its name and its slot. */
export function showLegend(place, legend, numbers) {
  const places = new Map();
  for (const number of [...new Set(numbers)].filter((each) => each >= 0).sort((one, other) => one - other)) {
    const [where, name, slot] = legend[number];
    if (!places.has(where)) places.set(where, element("span", { className: "kind", textContent: `${where}:` }));
    const entry = element("span");
    entry.append(element("span", { className: `swatch part${where.endsWith("idle") ? " idle" : ""} c${slot}` }), name);
    places.get(where).append(entry);
  }
  place.replaceChildren(...places.values());
}

/** Names and what they are, as a list. */
export function listOf(facts) {
  const list = element("dl");
  for (const [name, value] of facts) {
    const pair = element("div");
    pair.append(element("dt", { textContent: name }), element("dd", { textContent: value }));
    list.append(pair);
  }
  return list;
}
