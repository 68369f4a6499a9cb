// Spans of one trace as a tree grid over time. Arrows move, left and right fold, Enter shows a span.
import { el } from "./dom.js";
import { ms } from "./format.js";

/** Parents before children, siblings by start; a span whose parent is unknown is a root. */
export function tree(spans) {
  const known = new Set(spans.map((span) => span.span_id));
  const children = new Map();
  for (const span of [...spans].sort((a, b) => a.start_ns - b.start_ns || a.end_ns - b.end_ns)) {
    const parent = known.has(span.parent_id) && span.parent_id !== span.span_id ? span.parent_id : "";
    children.set(parent, [...(children.get(parent) ?? []), span]);
  }
  const ordered = [], seen = new Set();
  const walk = (span, depth) => {
    if (seen.has(span.span_id)) return;
    seen.add(span.span_id);
    const below = children.get(span.span_id) ?? [];
    ordered.push({ span, depth, leaf: below.length === 0 });
    for (const child of below) walk(child, depth + 1);
  };
  for (const span of children.get("") ?? []) walk(span, 0);
  return ordered;
}

export class Waterfall {
  constructor(spans, critical, choose) {
    this.rows = tree(spans);
    this.choose = choose;
    this.folded = new Set();
    this.begin = Math.min(...spans.map((span) => span.start_ns));
    this.total = Math.max(1, Math.max(...spans.map((span) => span.end_ns)) - this.begin);
    this.critical = new Map();
    for (const part of critical) {
      if (part.span_id) this.critical.set(part.span_id, [...(this.critical.get(part.span_id) ?? []), part]);
    }
    this.lines = this.rows.map((row, index) => this.line(row, index));
    this.node = el("div", { class: "waterfall", role: "treegrid", "aria-label": "Spans over time", "aria-colcount": "3" },
      el("div", { role: "row", class: "head" }, el("span", { role: "columnheader" }, "Span"),
        el("span", { role: "columnheader", class: "axis" }, ...this.axis()), el("span", { role: "columnheader", class: "number" }, "Time")),
      ...this.lines);
    this.node.addEventListener("keydown", (event) => this.key(event));
    this.focus(0, false);
  }

  /** Time of a span on the critical path, in nanoseconds. */
  criticalNs(span) {
    return (this.critical.get(span.span_id) ?? []).reduce((sum, part) => sum + part.end_ns - part.start_ns, 0);
  }

  axis() {
    return [0, 0.25, 0.5, 0.75, 1].map((part) => {
      const tick = el("span", { class: "tick" }, ms((part * this.total) / 1e6));
      tick.style.left = `${100 * part}%`;
      return tick;
    });
  }

  line({ span, depth, leaf }, index) {
    const bar = el("span", { class: `span-bar owner ${span.service}${span.error ? " failed" : ""}` });
    place(bar, span.start_ns - this.begin, span.end_ns - span.start_ns, this.total);
    const strips = (this.critical.get(span.span_id) ?? []).map((part) => {
      const strip = el("span", { class: "strip" });
      place(strip, part.start_ns - this.begin, part.end_ns - part.start_ns, this.total);
      return strip;
    });
    const name = el("span", { role: "gridcell", class: "name" },
      el("span", { class: "fold", "aria-hidden": "true" }, leaf ? "" : "▾"),
      el("span", { class: `key owner ${span.service}` }, el("span", { class: "service" }, span.service), span.name),
      span.error ? el("span", { class: "pill bad" }, span.attributes["error.type"] ?? "error") : null);
    name.style.setProperty("--depth", String(depth));
    const node = el("div", {
      role: "row", class: strips.length ? "line critical" : "line", tabindex: "-1", "aria-level": depth + 1,
      "aria-expanded": leaf ? null : "true", "aria-rowindex": index + 2,
      onclick: () => { this.focus(index); this.choose(span, this); },
      onfocus: () => { this.at = index; },
    }, name, el("span", { role: "gridcell", class: "track", "aria-label": `starts at ${ms((span.start_ns - this.begin) / 1e6)}${strips.length ? ", on the critical path" : ""}` }, bar, ...strips),
    el("span", { role: "gridcell", class: "number" }, ms(Math.max(0, span.end_ns - span.start_ns) / 1e6)));
    name.firstChild.addEventListener("click", (event) => { event.stopPropagation(); this.fold(index); });
    return node;
  }

  focus(index, really = true) {
    for (const line of this.lines) line.tabIndex = -1;
    const line = this.lines[index];
    if (!line) return;
    this.at = index;
    line.tabIndex = 0;
    if (really) line.focus();
  }

  key(event) {
    const visible = this.lines.map((_, index) => index).filter((index) => !this.lines[index].hidden);
    const place_ = visible.indexOf(this.at);
    const move = { ArrowDown: visible[place_ + 1], ArrowUp: visible[place_ - 1], Home: visible[0], End: visible.at(-1) };
    const row = this.rows[this.at];
    if (event.key in move) this.focus(move[event.key] ?? this.at);
    else if (event.key === "ArrowLeft") {
      if (!row.leaf && !this.folded.has(this.at)) this.fold(this.at);
      else this.focus(this.parent(this.at));
    } else if (event.key === "ArrowRight" && this.folded.has(this.at)) this.fold(this.at);
    else if (event.key === "Enter" || event.key === " ") this.choose(row.span, this);
    else return;
    event.preventDefault();
  }

  parent(index) {
    for (let above = index - 1; above >= 0; above -= 1) {
      if (this.rows[above].depth < this.rows[index].depth) return above;
    }
    return index;
  }

  fold(index) {
    if (this.rows[index].leaf) return;
    if (!this.folded.delete(index)) this.folded.add(index);
    let hiddenBelow = Infinity;
    this.rows.forEach((row, at) => {
      if (row.depth <= hiddenBelow) hiddenBelow = Infinity;
      this.lines[at].hidden = row.depth > hiddenBelow;
      if (this.folded.has(at) && !this.lines[at].hidden) hiddenBelow = row.depth;
      if (!row.leaf) {
        this.lines[at].setAttribute("aria-expanded", String(!this.folded.has(at)));
        this.lines[at].querySelector(".fold").textContent = this.folded.has(at) ? "▸" : "▾";
      }
    });
  }

  mark(span) {
    this.lines.forEach((line, index) => line.setAttribute("aria-selected", String(this.rows[index].span === span)));
  }
}

function place(node, from, length, total) {
  node.style.left = `${(100 * from) / total}%`;
  node.style.width = `${(100 * Math.max(0, length)) / total}%`;
}
