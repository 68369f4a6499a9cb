// The page "cluster": who serves, in which role, with how much to do, over which transports.
import { ask, repeat } from "./api.js";
import { Chart } from "./chart.js";
import { byId, el, empty, pairs, pill, show, table } from "./dom.js";
import { ago, bytes, count, decimal, ms, NONE, seconds, share, when } from "./format.js";
import "./frame.js";

const PERIOD_MS = 2000;
const ROLES = ["gateway", "scheduler", "prefill", "decode", "kvpool"];
const PAGE_STATES = ["referenced", "leased", "cached", "quarantined", "free"];

const time = (value) => new Date(value).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const charts = {
  work: new Chart("Requests", [{ name: "running", className: "a", points: [] }, { name: "queued at workers", className: "b", points: [] }], { x: time, y: (v) => decimal(v, v % 1 ? 1 : 0), most: 4 }),
  ttft: new Chart("Time to first token, mean", [{ name: "mean", className: "a", points: [] }], { x: time, y: ms, empty: "no first token in these minutes" }),
  tokens: new Chart("Tokens a second", [{ name: "tokens/s", className: "c", points: [] }], { x: time, y: (v) => decimal(v, v >= 10 || v % 1 === 0 ? 0 : 1), most: 10 }),
  pages: new Chart("KV pages in use", [{ name: "in use", className: "d", points: [] }], { x: time, y: share, most: 1 }),
};
byId("charts").append(...Object.values(charts).map((chart) => chart.node));

/** Samples of one metric with these labels. */
function samples(figures, name, labels = {}) {
  return (figures ?? []).filter((sample) => sample.name === name
    && Object.entries(labels).every(([key, value]) => sample.labels[key] === value));
}

const sum = (figures, name, labels) => samples(figures, name, labels).reduce((total, sample) => total + sample.value, 0);

// -- verdict --------------------------------------------------------------------------------

/** What an operator should know first: problems, worst first. */
function problems(found) {
  const told = [];
  if (found.problem) told.push(["bad", `${found.problem}: what is shown may be old`]);
  const of = (role) => found.workers.filter((worker) => worker.role === role);
  if (!found.problem && !of("decode").some((worker) => worker.state === "ready")) told.push(["bad", "no decode worker is ready: nothing can be served"]);
  for (const worker of found.workers) {
    if (worker.state === "stuck" || worker.state === "suspected") told.push(["bad", `${worker.worker} is ${worker.state}`]);
    else if (worker.turning) told.push(["warn", `${worker.worker} drains to serve ${worker.turning}`]);
    else if (worker.state !== "ready") told.push(["warn", `${worker.worker} is ${worker.state}`]);
    if (sum(worker.figures, "baton_leaked_pages") > 0) told.push(["bad", `${worker.worker} leaks pages`]);
    if (sum(worker.figures, "baton_checksum_failures_total") > 0) told.push(["warn", `${worker.worker} saw pages with a wrong checksum`]);
    if (sum(worker.figures, "baton_links", { class: "fallback" }) > 0) told.push(["warn", `${worker.worker} reads over a fallback transport`]);
  }
  if (!found.problem && !of("prefill").length) told.push(["warn", "no prefill worker: decode computes prompts itself"]);
  return told.sort((a, b) => (a[0] === b[0] ? 0 : a[0] === "bad" ? -1 : 1));
}

function showVerdict(found) {
  const told = problems(found);
  const worst = told[0]?.[0] ?? "good";
  const counts = ["prefill", "decode", "kvpool"].map((role) => {
    const many = found.workers.filter((worker) => worker.role === role).length;
    return many ? `${many} ${role}` : null;
  }).filter(Boolean).join(", ");
  const word = { good: "Healthy", warn: "Serving, with notes", bad: "Needs attention" }[worst];
  const lead = found.scheduler ? `${found.scheduler.leader} leads (epoch ${found.scheduler.epoch})` : "no scheduler was heard";
  const node = byId("verdict");
  const text = told.length ? told.slice(0, 4).map((entry) => entry[1]).join("; ") : `${counts}; ${lead}`;
  if (node.dataset.told !== word + text) {
    node.dataset.told = word + text;
    node.className = `verdict ${worst}`;
    show(node, el("span", { class: "dot" }), el("p", {}, el("strong", {}, word), " ", text, "."));
  }
}

// -- tiles and charts -------------------------------------------------------------------------

/** Points of a rate, from totals at each look. */
function rates(history, name, scale = 1000) {
  return history.slice(1).map((point, index) => {
    const before = history[index];
    return [point.at_ms, Math.max(0, (scale * (point[name] - before[name])) / Math.max(1, point.at_ms - before.at_ms))];
  });
}

function means(history) {
  return history.slice(1).map((point, index) => {
    const many = point.ttft_count - history[index].ttft_count;
    return [point.at_ms, many > 0 ? (1000 * (point.ttft_sum_s - history[index].ttft_sum_s)) / many : null];
  });
}

function showTiles(found) {
  const own = found.gateway, loads = found.workers.map((worker) => worker.load);
  const add = (name) => loads.reduce((total, load) => total + load[name], 0);
  const minute = found.history.filter((point) => point.at_ms > found.at_ms - 65_000);
  const [first, last] = [minute[0], minute.at(-1)];
  const many = first ? last.ttft_count - first.ttft_count : 0;
  const ttft = many > 0 ? ms((1000 * (last.ttft_sum_s - first.ttft_sum_s)) / many) : NONE;
  const all = sum(own, "baton_prompt_tokens_total"), hit = all - sum(own, "baton_prompt_tokens_total", { source: "computed" });
  const total = add("pages_total");
  show(byId("tiles"), ...pairs([
    ["Running", count(sum(own, "baton_requests_running")), "open client requests"],
    ["Queued", `${count(add("queued_requests"))} · ${count(add("queued_tokens"))} tok`, "requests and prompt tokens that wait at workers"],
    ["First token, last min", ttft, "mean time from the request's head to its first token"],
    ["Tokens made", count(sum(own, "baton_generated_tokens_total")), "since this gateway started"],
    ["Prompt from cache", all > 0 ? share(hit / all) : NONE, "tokens of prompts that need not be computed"],
    ["Pages in use", total ? share(1 - add("pages_free") / total) : NONE, `${count(total - add("pages_free"))} of ${count(total)}`],
  ]));
}

function showCharts(history) {
  const line = (name) => history.map((point) => [point.at_ms, point[name]]);
  charts.work.update([{ name: "running", className: "a", points: line("running") }, { name: "queued at workers", className: "b", points: line("queued") }]);
  charts.ttft.update([{ name: "mean", className: "a", points: means(history) }]);
  charts.tokens.update([{ name: "tokens/s", className: "c", points: rates(history, "tokens") }]);
  charts.pages.update([{ name: "in use", className: "d", points: line("pages_used") }]);
}

// -- workers ------------------------------------------------------------------------------------

/** Pages by state as one bar; the words beside it say the same. */
function pageBar(worker) {
  const found = samples(worker.figures, "baton_pages").filter((sample) => sample.value > 0);
  const total = found.reduce((all, sample) => all + sample.value, 0);
  if (!total) return null;
  const order = [...found].sort((a, b) => PAGE_STATES.indexOf(a.labels.state) - PAGE_STATES.indexOf(b.labels.state));
  const bar = el("div", { class: "bar", "aria-hidden": "true" }, ...order.map((sample) => {
    const part = el("span", { class: `page ${sample.labels.state}` });
    part.style.flexGrow = sample.value;
    return part;
  }));
  const words = order.map((sample) => el("span", { class: `key page ${sample.labels.state}` }, `${count(sample.value)} ${sample.labels.state}`));
  return el("div", { class: "pages" }, el("p", { class: "muted" }, `${count(total)} pages of ${bytes(worker.page_bytes)}`), bar, el("p", { class: "keys" }, ...words));
}

/** Of a pool node: what it holds, and whether anybody came for it. */
function poolFacts(figures) {
  const lookups = sum(figures, "baton_pool_lookups_total"), gone = sum(figures, "baton_pool_evictions_total");
  return [
    ["Lookups", lookups ? `${count(lookups)} · ${share(sum(figures, "baton_pool_lookups_total", { result: "hit" }) / lookups)} hit` : "0"],
    ["Tokens found", count(sum(figures, "baton_pool_hit_tokens_total"))],
    ["Held", bytes(samples(figures, "baton_pool_bytes").filter((sample) => sample.labels.state !== "free").reduce((total, sample) => total + sample.value, 0))],
    ["Evicted", `${count(gone)} · ${count(sum(figures, "baton_pool_unused_evictions_total"))} unused`, "blocks that made room, and those of them that nobody had come for"],
  ];
}

/** Of this gateway, from its own counters. */
function gatewayFacts(own) {
  const lags = sum(own, "baton_loop_lag_seconds_count");
  return [
    ["Running", count(sum(own, "baton_requests_running"))],
    ["Streams", count(sum(own, "baton_streams_open"))],
    ["Trace store", bytes(sum(own, "baton_trace_store_bytes"))],
    ["Spans lost", count(sum(own, "baton_spans_dropped_total")), "spans that were not delivered or stored"],
    ["Loop lag", lags ? seconds(sum(own, "baton_loop_lag_seconds_sum") / lags) : NONE, "how late the event loop runs its timers, on average"],
  ];
}

function workerCard(worker, own) {
  const load = worker.load, leases = samples(worker.figures, "baton_leases");
  const kind = { ready: "good", draining: "warn" }[worker.state] ?? "bad";
  const works = worker.role === "prefill" || worker.role === "decode";
  return el("article", { class: `panel worker ${ROLES.includes(worker.role) ? worker.role : ""}`, "aria-label": worker.worker },
    el("header", {}, el("h3", {}, worker.worker), el("span", { class: "role" }, worker.role), pill(worker.turning ? `turns to ${worker.turning}` : worker.state, kind)),
    el("dl", { class: "facts" }, ...pairs([
      works && ["Queue", `${count(load.queued_requests)} · ${count(load.queued_tokens)} tok`, "requests and prompt tokens"],
      works && ["Running", count(load.running_sequences)],
      works && ["Work left", seconds(load.work_left_s), "until a job that comes now would start"],
      leases.length > 0 && ["Leases", count(sum(worker.figures, "baton_leases"))],
      worker.role !== "gateway" && ["Known blocks", count(worker.blocks), "blocks of its cache in the prefix index"],
      ...(worker.role === "kvpool" && worker.figures ? poolFacts(worker.figures) : []),
      ...(own ? gatewayFacts(own) : []),
    ])),
    pageBar(worker),
    el("p", { class: "muted foot" }, `epoch ${count(worker.epoch)}, heard ${worker.age_s < 1.5 ? "now" : `${decimal(worker.age_s)} s ago`}`),
    worker.figures === null ? el("p", { class: "muted" }, "does not tell its figures") : null);
}

function showWorkers(found) {
  const order = (worker) => [ROLES.indexOf(worker.role), worker.worker];
  const sorted = [...found.workers].sort((a, b) => order(a)[0] - order(b)[0] || (order(a)[1] < order(b)[1] ? -1 : 1));
  byId("workers-note").textContent = found.more_workers ? `${found.more_workers} more are not listed` : `updated ${time(found.at_ms)}`;
  const gateways = sorted.filter((worker) => worker.role === "gateway").length;
  const leader = found.scheduler && el("article", { class: "panel worker scheduler", "aria-label": found.scheduler.leader },
    el("header", {}, el("h3", {}, found.scheduler.leader), el("span", { class: "role" }, "scheduler"), pill("leads", "good")),
    el("dl", { class: "facts" }, ...pairs([
      ["Leader epoch", count(found.scheduler.epoch), "grows when another scheduler takes the lead"],
      ["Prefix index", `${count(found.index.blocks)} blocks`],
      ["Its memory", bytes(found.index.bytes)],
    ])));
  const cards = sorted.map((worker) => workerCard(worker, worker.role === "gateway" && gateways === 1 ? found.gateway : null));
  if (leader) cards.splice(gateways, 0, leader);
  show(byId("workers"), cards.length ? cards : empty("No worker was heard yet."));
}

// -- the rest -------------------------------------------------------------------------------------

function showLinks(found) {
  const rows = found.workers.flatMap((worker) => {
    const names = new Set(["baton_transfer_bytes_total", "baton_transfer_served_bytes_total", "baton_links"]
      .flatMap((name) => samples(worker.figures, name).map((sample) => sample.labels.transport)));
    return [...names].sort().map((transport) => {
      const of = { transport };
      const [taken, spent] = [sum(worker.figures, "baton_transfer_bytes_total", { transport, form: "raw" }), sum(worker.figures, "baton_transfer_seconds_sum", of)];
      const classes = samples(worker.figures, "baton_links", of).filter((sample) => sample.value > 0);
      const kind = classes.map((sample) => sample.labels.class.replace("_", " "));
      return [worker.worker, el("code", {}, transport),
        kind.length ? pill([...new Set(kind)].join(", "), kind.includes("fallback") ? "warn" : "") : NONE,
        count(classes.reduce((all, sample) => all + sample.value, 0)), bytes(taken),
        bytes(sum(worker.figures, "baton_transfer_served_bytes_total", of)),
        spent > 0 && taken > 0 ? `${bytes(taken / spent)}/s` : NONE];
    });
  });
  const columns = [{ name: "Worker" }, { name: "Transport" }, { name: "Class" }, { name: "Open links", number: true }, { name: "Read", number: true }, { name: "Served", number: true }, { name: "Rate of reads", number: true }];
  show(byId("links"), rows.length ? table("Transports in use", columns, rows, "panel flush rows") : el("div", { class: "panel" }, empty("No pages have moved yet. Send a request with a longer prompt and they will.")));
}

function showRoles(found) {
  const told = found.leader_figures;
  const wanted = samples(told, "baton_workers_wanted");
  const flips = samples(told, "baton_role_flips_total").filter((sample) => sample.value > 0);
  const attained = samples(told, "baton_slo_attainment");
  show(byId("roles"),
    el("dl", { class: "facts" }, ...pairs([
      ...["prefill", "decode"].map((role) => [`Serving ${role}`, count(found.workers.filter((worker) => worker.role === role).length)]),
      ...wanted.map((sample) => [`Wanted ${sample.labels.role}`, decimal(sample.value, 0), "what the present load would need"]),
      ...attained.map((sample) => [`Kept ${sample.labels.objective}`, share(sample.value)]),
    ])),
    flips.length ? el("ul", { class: "plain" }, ...flips.map((sample) => el("li", {}, `${count(sample.value)} × to ${sample.labels.to}: ${sample.labels.outcome}`)))
      : empty("No worker has changed its role."));
}

function showChanges(found) {
  const rows = found.changes.slice(0, 12).map((change) => el("li", {},
    el("time", { title: when(change.at_ms) }, ago(change.at_ms, found.at_ms)), " ", el("strong", {}, change.worker), ` ${change.what}`));
  show(byId("changes"), rows.length ? el("ul", { class: "plain" }, ...rows) : empty("Nothing has changed since this gateway looks."));
}

function showRefusals(found) {
  const told = samples(found.gateway, "baton_refusals_total").filter((sample) => sample.value > 0).sort((a, b) => b.value - a.value);
  show(byId("refusals"), told.length ? el("ul", { class: "plain" }, ...told.slice(0, 12).map((sample) =>
    el("li", {}, el("strong", {}, count(sample.value)), ` × ${sample.labels.status} `, el("code", {}, sample.labels.reason)))) : empty("No request was refused."));
}

async function look() {
  const found = await ask("/admin/cluster");
  showVerdict(found);
  showTiles(found);
  showCharts(found.history);
  showWorkers(found);
  showLinks(found);
  showRoles(found);
  showChanges(found);
  showRefusals(found);
  document.body.dataset.ready = "true";
}

repeat(look, PERIOD_MS, (error) => {
  const node = byId("verdict");
  node.className = "verdict bad";
  node.dataset.told = "";
  show(node, el("span", { class: "dot" }), el("p", {}, el("strong", {}, "No news"), ` ${error.message} What is shown below may be old.`));
});
