// The parts of the time to first token as a bar and a table that adds up to 100 %.
import { el, table } from "./dom.js";
import { ms, percents } from "./format.js";

const PARTS = {
  receive: ["gateway", "reading the request"], parse: ["gateway", "parsing and checking it"],
  render: ["gateway", "template and tokeniser"], admit: ["gateway", "into the queue"],
  retried: ["gateway", "attempts that failed"], place: ["scheduler", "asking the scheduler"],
  reserve: ["decode", "reserving pages on decode"], bus_out: ["bus", "job on its way"],
  prefill_queue: ["prefill", "waiting for pages"], fetch: ["prefill", "cached blocks, and its first step"],
  compute: ["prefill", "computing the prompt"], sample: ["prefill", "drawing the token"],
  bus_back: ["bus", "token on its way"], emit: ["gateway", "text, and the socket"],
};

/** Nodes for one split. */
export function splitView(split) {
  const values = split.parts.map(([, value]) => value);
  const shares = percents(values);
  const bar = el("div", { class: "bar tall", "aria-hidden": "true" }, ...split.parts.map(([name, value]) => {
    if (value <= 0) return null;
    const part = el("span", { class: `owner ${PARTS[name]?.[0] ?? ""}`, title: `${name}: ${ms(value / 1e6)}` },
      value / split.total_ns > 0.09 ? name.replace("_", " ") : "");
    part.style.flexGrow = value;
    return part;
  }));
  const rows = split.parts.map(([name, value], index) => [
    { content: el("span", { class: `key owner ${PARTS[name]?.[0] ?? ""}` }, name.replace("_", " ")), className: value ? "nowrap" : "nowrap muted" },
    { content: PARTS[name]?.[0] ?? "", className: "muted" }, { content: PARTS[name]?.[1] ?? "", className: "muted" },
    { content: ms(value / 1e6), className: value ? "" : "muted" },
    { content: `${shares[index].toFixed(1)} %`, className: value ? "share" : "share muted" },
  ]);
  const total = shares.reduce((sum, value) => sum + value, 0);
  rows.push([{ content: "together", className: "strong" }, "", "", { content: ms(split.total_ns / 1e6), className: "strong" }, { content: `${total.toFixed(1)} %`, className: "strong total" }]);
  const columns = [{ name: "Part" }, { name: "Where" }, { name: "What" }, { name: "Time", number: true }, { name: "Share", number: true }];
  const notes = [];
  if (split.clock_suspect) notes.push(el("p", { class: "notice warn" }, "The worker reports more time than the gateway waited: their clocks disagree, so the parts on the worker are cut to fit."));
  if (split.missing.length) notes.push(el("p", { class: "muted" }, `Not told by any span: ${split.missing.join(", ").replaceAll("_", " ")}. That time is part of what follows.`));
  return [bar, table("Parts of the time to first token", columns, rows, "compact"), ...notes];
}
