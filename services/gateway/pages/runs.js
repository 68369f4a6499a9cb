// The page "runs": results of the load generator that lie in a folder, one by one or two compared.
import { ask } from "./api.js";
import { Chart } from "./chart.js";
import { byId, el, empty, pairs, pill, show, table } from "./dom.js";
import { count, decimal, NONE, seconds, share, when } from "./format.js";
import "./frame.js";

const NAMES = { ttft_s: "Time to first token", tpot_s: "Time per further token", e2e_s: "Whole answer" };
const asked = location.pathname.split("/")[2];
const number = (value) => (typeof value === "number" ? decimal(value, Number.isInteger(value) ? 0 : Math.abs(value) < 10 ? 2 : 1) : NONE);

/** A figure of run.json, wherever this version keeps it. */
function figure(metrics, name, part) {
  const found = metrics?.[`${name}_ms`] ?? metrics?.[name];
  return found && typeof found === "object" ? found[part] : undefined;
}

/** Whether to believe a run, then how much of it met its objectives. */
function verdict(run) {
  if (run.limited?.length) return pill("client limited", "bad");
  if (run.interrupted) return pill("interrupted", "warn");
  const { slo, attainment } = run.goodput ?? {};
  return slo && typeof attainment === "number" ? `${share(attainment)} within ${slo}` : NONE;
}

// -- all runs --------------------------------------------------------------------------------------

async function list() {
  const found = await ask("/admin/runs");
  byId("state").hidden = true;
  if (found.off) {
    show(byId("body"), el("div", { class: "panel" }, empty("This page is off. Start the gateway with ", el("code", {}, "--runs-dir"), " set to the folder where the load generator writes its results.")));
    return;
  }
  if (found.problem) throw new Error(`${found.problem[0].toUpperCase()}${found.problem.slice(1)}. It is set by --runs-dir.`);
  if (!found.runs.length) {
    show(byId("body"), el("div", { class: "panel" }, empty("No results lie there yet. Make some: ", el("code", {}, "python -m loadgen run"))));
    return;
  }
  const rows = found.runs.map((run) => [
    el("a", { href: `/runs/${encodeURIComponent(run.id)}` }, run.id), { content: when(run.changed_ms), className: "nowrap" },
    ...(run.problem ? [pill(run.problem, "bad"), "", "", "", ""] : [
      run.source || NONE, number(run.metrics.requests ?? run.metrics.count), number(figure(run.metrics, "ttft", "p50")), number(figure(run.metrics, "tpot", "p50")), verdict(run)])]);
  const columns = [{ name: "Run" }, { name: "Written" }, { name: "Source" }, { name: "Requests", number: true }, { name: "TTFT p50, ms", number: true }, { name: "TPOT p50, ms", number: true }, { name: "Verdict" }];
  show(byId("body"), table("Runs", columns, rows, "panel flush rows"), found.runs.length > 1 ? chooser(found.runs) : null);
  const wanted = new URLSearchParams(location.search);
  if (wanted.get("a") && wanted.get("b")) await compare(wanted.get("a"), wanted.get("b"));
}

function chooser(runs) {
  const good = runs.filter((run) => !run.problem);
  const wanted = new URLSearchParams(location.search);
  const select = (name, preferred) => el("select", { name }, ...good.map((run, index) =>
    el("option", { value: run.id, selected: (wanted.get(name) ?? good[preferred]?.id) === run.id || (!wanted.get(name) && index === preferred) }, run.id)));
  const form = el("form", { class: "filters wide", "aria-label": "Compare two runs" },
    el("label", {}, "First", select("a", 1)), el("label", {}, "Second", select("b", 0)),
    el("div", { class: "actions" }, el("button", { type: "submit" }, "Compare")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const [a, b] = [form.elements.a.value, form.elements.b.value];
    history.replaceState(null, "", `?${new URLSearchParams({ a, b })}`);
    compare(a, b).catch((error) => show(byId("compared"), el("p", { class: "notice bad" }, error.message)));
  });
  return el("section", { "aria-labelledby": "h-compare" }, el("div", { class: "heading" }, el("h2", { id: "h-compare" }, "Compare")), form, el("div", { id: "compared", role: "status" }));
}

async function compare(first, second) {
  const found = await ask(`/admin/runs/${encodeURIComponent(first)}?${new URLSearchParams({ with: second })}`);
  const rows = found.figures.map((entry) => [NAMES[entry.name] ?? entry.name, seconds(entry.first), seconds(entry.second),
    entry.low === undefined ? NONE : `${seconds(entry.low)} to ${seconds(entry.high)}`,
    pill(entry.verdict, /faster/.test(entry.verdict) ? "good" : /slower/.test(entry.verdict) ? "warn" : "")]);
  const words = (outcomes) => Object.entries(outcomes).map(([name, many]) => `${count(many)} ${name}`).join(", ") || "no rows";
  show(byId("compared"), table("Medians of both runs", [{ name: "Median of" }, { name: "First", number: true }, { name: "Second", number: true }, { name: "Difference, 95 %", number: true }, { name: "Verdict" }], rows, "panel flush rows"),
    el("p", { class: "muted" }, `First: ${words(found.outcomes[0])}. Second: ${words(found.outcomes[1])}. Intervals come from drawing stretches of each run's answered requests again; runs on different days or machines differ for more reasons than these.`));
}

// -- one run -----------------------------------------------------------------------------------------

function spreads(metrics) {
  const names = Object.keys(metrics).filter((name) => metrics[name] && typeof metrics[name] === "object" && "p50" in metrics[name]);
  const parts = ["mean", "p50", "p90", "p95", "p99", "p999"].filter((part) => names.some((name) => typeof metrics[name][part] === "number"));
  if (!names.length) return empty("run.json holds no latencies.");
  return table("Latencies", [{ name: "Figure" }, ...parts.map((part) => ({ name: part, number: true }))],
    names.map((name) => [name.replace(/_ms$/, ", ms").replaceAll("_", " "), ...parts.map((part) => number(metrics[name][part]))]), "panel flush");
}

async function one(name) {
  const found = await ask(`/admin/runs/${encodeURIComponent(name)}`);
  byId("state").hidden = true;
  byId("title").textContent = found.id;
  document.title = `${found.id} · Baton`;
  show(byId("crumbs"), el("p", { class: "crumbs" }, el("a", { href: "/runs" }, "Runs")));
  const plain = Object.entries(found.metrics ?? {}).filter(([, value]) => typeof value === "number" || typeof value === "string");
  const curves = Object.entries(found.curves).filter(([, points]) => points.length > 1).map(([which, points]) =>
    new Chart(NAMES[which] ?? which, [{ name: "share of requests", className: "a", points }], { x: seconds, y: share, xName: "at most", most: 1 }).node);
  const worst = found.worst.map((row) => [
    row.trace_id ? el("a", { href: `/traces/${encodeURIComponent(row.trace_id)}` }, row.request_id || row.trace_id.slice(0, 12)) : row.number,
    row.outcome === "ok" ? "ok" : pill(`${row.outcome} ${row.reason}`, "bad"), row.ttft_s ? seconds(Number(row.ttft_s)) : NONE, row.e2e_s ? seconds(Number(row.e2e_s)) : NONE,
    row.prompt_tokens || NONE, row.cached_tokens || NONE, row.output_tokens || NONE]);
  const limited = (found.limited ?? []).map((reason) => `Client limited, so not the server's figures: ${reason}`);
  const notices = [...limited.map((text) => ["bad", text]), ...(found.warnings ?? []).map((text) => ["warn", text])]
    .map(([kind, text]) => el("p", { class: `notice ${kind}` }, text));
  show(byId("body"), ...notices,
    el("dl", { class: "facts panel" }, ...pairs([["Written", when(found.changed_ms)], ["Source", found.source || NONE], ["Verdict", verdict(found)], ["Rows", count(found.rows)], ...plain.slice(0, 12).map(([key, value]) => [key.replaceAll("_", " "), typeof value === "number" ? number(value) : value])])),
    el("section", {}, el("div", { class: "heading" }, el("h2", {}, "Latencies")), spreads(found.metrics ?? {})),
    curves.length ? el("section", {}, el("div", { class: "heading" }, el("h2", {}, "How many were so fast")), el("div", { class: "charts" }, ...curves)) : null,
    el("section", {}, el("div", { class: "heading" }, el("h2", {}, "Slowest first tokens"), el("p", {}, "each opens its trace, while it is kept")),
      worst.length ? table("Slowest requests", [{ name: "Request" }, { name: "Ending" }, { name: "First token", number: true }, { name: "Whole", number: true }, { name: "Prompt", number: true }, { name: "Cached", number: true }, { name: "Tokens", number: true }], worst, "panel flush rows")
        : el("div", { class: "panel" }, empty("There is no requests.csv beside run.json."))),
    el("section", {}, el("div", { class: "heading" }, el("h2", {}, "How it was made")), el("details", { class: "panel" }, el("summary", {}, "run.json"), el("pre", { tabindex: "0" }, JSON.stringify(found.document, null, 2).slice(0, 200_000)))));
}

(asked ? one(decodeURIComponent(asked)) : list()).catch((error) => {
  byId("state").hidden = false;
  byId("state").className = "notice bad";
  byId("state").textContent = error.message;
}).finally(() => { document.body.dataset.ready = "true"; });
