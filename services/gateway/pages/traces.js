// The page "traces": search, with the filters in the address, so that a search can be sent on.
import { ask } from "./api.js";
import { byId, el, empty, pill, show, table } from "./dom.js";
import { count, ms, NONE, ns, share, when } from "./format.js";
import "./frame.js";

const FIELDS = ["within", "status", "slo", "hit", "route", "worker", "tenant", "reason", "hint", "run", "min_ms"];
const PAGE = 50;
const COLUMNS = [
  { name: "Started" }, { name: "Request" }, { name: "Ending" }, { name: "Route" },
  { name: "First token", number: true }, { name: "Whole", number: true },
  { name: "Prompt", number: true }, { name: "From cache", number: true },
  { name: "Tokens", number: true }, { name: "Workers" },
];

const form = byId("filters");
let listed = [];

/** What the fields say, without the empty ones. */
function chosen() {
  return Object.fromEntries(FIELDS.map((name) => [name, form.elements[name].value.trim()]).filter(([, value]) => value));
}

function query(fields, before) {
  const asked = new URLSearchParams({ limit: String(PAGE) });
  for (const [name, value] of Object.entries(fields)) {
    if (name === "within") asked.set("since_ms", String(Math.floor(Date.now() - 1000 * Number(value))));
    else asked.set(name, value);
  }
  if (before) asked.set("before_ns", before);
  return `/admin/traces?${asked}`;
}

function ending(trace) {
  const kind = { finished: "good", failed: "bad", cancelled: "warn" }[trace.status] ?? "";
  const nodes = [pill(trace.status, kind)];
  if (trace.reason) nodes.push(" ", el("code", {}, trace.reason));
  if (trace.slo_missed) nodes.push(" ", pill(`missed ${trace.slo_missed.replace(",", ", ")}`, "warn"));
  return nodes;
}

function row(trace) {
  const link = el("a", { href: `/traces/${trace.trace_id}` }, trace.request || trace.trace_id);
  const cached = trace.prompt_tokens ? share(trace.cached_tokens / trace.prompt_tokens) : NONE;
  const workers = trace.workers.filter((name) => /^(prefill|decode)/.test(name));
  return [
    { content: when(trace.start_ns / 1e6), className: "nowrap" }, { content: link, className: "id" }, { content: ending(trace) },
    trace.route === "none" || !trace.route ? NONE : trace.route, ns(trace.ttft_ns), ms((trace.end_ns - trace.start_ns) / 1e6),
    trace.prompt_tokens ? count(trace.prompt_tokens) : NONE, cached, trace.output_tokens ? count(trace.output_tokens) : NONE,
    { content: workers.join(", ") || NONE, className: "muted nowrap" },
  ];
}

function showResults(fields) {
  const filtered = Object.keys(fields).length > 0;
  byId("count").textContent = listed.length ? `${count(listed.length)} trace${listed.length === 1 ? "" : "s"}${filtered ? " that fit" : ""}, newest first` : "";
  if (listed.length) show(byId("results"), table("Traces found", COLUMNS, listed.map(row), "panel flush rows dense"));
  else show(byId("results"), el("div", { class: "panel" }, filtered
    ? empty("No trace fits these filters.", " ", el("button", { type: "button", class: "link", onclick: () => form.reset() }, "Clear them"))
    : empty("No traces yet. Send a request; its spans arrive about a second after its answer.")));
}

function busy(now) {
  byId("results").setAttribute("aria-busy", String(now));
  if (now) byId("count").textContent = "Searching…";
}

async function search(older = false) {
  const fields = chosen();
  history.replaceState(null, "", Object.keys(fields).length ? `?${new URLSearchParams(fields)}` : location.pathname);
  busy(true);
  try {
    const before = older ? listed.at(-1)?.start_ns : null;
    const found = (await ask(query(fields, before))).traces;
    listed = older ? [...listed, ...found] : found;
    byId("more").hidden = found.length < PAGE;
    showResults(fields);
  } catch (error) {
    byId("count").textContent = "";
    byId("more").hidden = true;
    show(byId("results"), el("p", { class: "notice bad", role: "alert" }, error.status === 404
      ? "This gateway keeps no traces: it was started without the listener for them." : error.message));
  }
  busy(false);
  document.body.dataset.ready = "true";
}

for (const [name, value] of new URLSearchParams(location.search)) {
  if (FIELDS.includes(name)) form.elements[name].value = value;
}
form.addEventListener("submit", (event) => { event.preventDefault(); search(); });
form.addEventListener("change", (event) => { if (event.target.tagName === "SELECT") search(); });
form.addEventListener("reset", () => { busy(true); setTimeout(search); });
byId("more").addEventListener("click", () => search(true));
byId("open").addEventListener("submit", (event) => {
  event.preventDefault();
  const id = byId("id").value.trim();
  if (/^[0-9a-zA-Z-]{8,64}$/.test(id)) location.assign(`/traces/${id}`);
  else byId("count").textContent = "An id has 8 to 64 letters, digits and dashes.";
});
search();
