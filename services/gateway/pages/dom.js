// Elements from values. Every text enters as a text node; nothing here reads markup.

/** An element: attributes with null or false are left out, `on…` functions become listeners. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Replace what stands in a node. */
export function show(node, ...children) {
  node.replaceChildren(...flat(children));
}

export const byId = (id) => document.getElementById(id);

/** A table with a head; cells are texts, nodes or {text, title, className, number}. On narrow
 *  screens each row becomes a card, and cells show the name of their column. */
export function table(caption, columns, rows, className = "") {
  const head = columns.map((column) =>
    el("th", { scope: "col", class: column.number ? "number" : null }, column.name));
  const body = rows.map((row) => el("tr", {}, ...row.map((cell, index) => {
    const column = columns[index];
    const content = cell !== null && typeof cell === "object" && !(cell instanceof Node) && !Array.isArray(cell)
      ? cell : { content: cell };
    return el("td", {
      "data-label": column.name, title: content.title,
      class: [column.number ? "number" : "", content.className ?? ""].join(" ").trim() || null,
    }, ...[content.content].flat());
  })));
  return el("div", { class: `scroll ${className}`, tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("caption", { class: "hidden" }, caption), el("thead", {}, el("tr", {}, ...head)),
      el("tbody", {}, ...body)));
}

/** Pairs of names and values. */
export function pairs(entries) {
  return entries.filter((entry) => entry).map(([name, value, title]) =>
    el("div", { title }, el("dt", {}, name), el("dd", {}, ...[value].flat())));
}

/** An honest empty place. */
export function empty(text, ...more) {
  return el("p", { class: "empty" }, text, ...more);
}

export function pill(text, kind = "") {
  return el("span", { class: `pill ${kind}` }, text);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on") && typeof value === "function") node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...flat(children));
  return node;
}

function flat(children) {
  return children.flat().filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}
