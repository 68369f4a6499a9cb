// The page "prefixes": the hottest beginnings of prompts, and who holds them.
import { ask, repeat } from "./api.js";
import { byId, el, empty, pill, show, table } from "./dom.js";
import { bytes, count, decimal, NONE } from "./format.js";
import "./frame.js";

const PERIOD_MS = 4000;
const COLUMNS = [{ name: "Prefix" }, { name: "Length, tokens", number: true }, { name: "Requests/s", number: true }, { name: "Saved if cached, tokens/s", number: true }, { name: "Held by" }];

function holders(prefix) {
  if (!prefix.holders.length) return [el("span", { class: "muted" }, "nobody: the next request computes it")];
  const nodes = prefix.holders.slice(0, 8).flatMap((holder) => [pill(holder.tier === "device" ? holder.worker : `${holder.worker} (${holder.tier})`, holder.worker.split("-")[0]), " "]);
  const rest = prefix.holders.length - 8;
  if (rest > 0) nodes.push(`and ${rest} more`);
  if (prefix.copies) nodes.push(el("span", { class: "muted" }, ` ${count(prefix.copies)} copied on purpose`));
  return nodes;
}

function heatBar(value, most) {
  const part = el("span", { class: "fill" });
  part.style.width = `${(100 * value) / Math.max(most, 1e-9)}%`;
  return el("span", { class: "heat" }, el("span", { class: "rail", "aria-hidden": "true" }, part), decimal(value, value < 10 ? 1 : 0));
}

async function look() {
  const found = await ask("/admin/prefixes");
  const heat = (prefix) => prefix.per_s * prefix.depth * found.block_tokens;
  const sorted = [...found.prefixes].sort((a, b) => heat(b) - heat(a));
  byId("state").className = found.problem ? "notice bad" : "muted";
  byId("state").textContent = found.problem ? `${found.problem}: what is shown may be old.`
    : found.index ? `The index knows ${count(found.index.blocks)} blocks of ${count(found.block_tokens)} tokens and takes ${bytes(found.index.bytes)}.` : "";
  const most = sorted.length ? heat(sorted[0]) : 0;
  const rows = sorted.map((prefix) => [
    { content: el("code", {}, prefix.block.slice(0, 12)), title: `${prefix.block}, the name of its last block` },
    count(prefix.depth * found.block_tokens), decimal(prefix.per_s, 2), heatBar(heat(prefix), most), { content: holders(prefix) }]);
  show(byId("body"), rows.length ? table("Hottest prefixes", COLUMNS, rows, "panel flush rows")
    : el("div", { class: "panel" }, empty("No prompts with a common beginning came lately. A prefix is watched from two blocks on, and forgotten within minutes.")));
  document.body.dataset.ready = "true";
}

repeat(look, PERIOD_MS, (error) => {
  byId("state").className = "notice bad";
  byId("state").textContent = `${error.message} ${NONE} what is shown may be old.`;
});
