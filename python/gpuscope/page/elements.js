// Elements of the document, as what is drawn around the canvases makes them.

export const element = (tag, properties = {}, attributes = {}) => {
  const made = Object.assign(document.createElement(tag), properties);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};

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
