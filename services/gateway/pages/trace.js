// The page of one trace: split, waterfall, placement, what if, hints, logs.
import { ask } from "./api.js";
import { byId, el, empty, pairs, pill, show, table } from "./dom.js";
import { count, decimal, ms, NONE, ns, share, when } from "./format.js";
import { splitView } from "./split.js";
import { Waterfall } from "./waterfall.js";
import "./frame.js";

const SERVICES = ["gateway", "scheduler", "prefill", "decode", "kvpool"];
const AGAIN_MS = 1500;
const TRIES = 6;
const id = decodeURIComponent(location.pathname.split("/").at(-1));

function showFacts(found) {
  const { summary } = found;
  const name = summary?.request ? ["Request", summary.request] : ["Trace", found.trace_id];
  show(byId("title"), `${name[0]} `, el("code", {}, name[1]));
  document.title = `${name.join(" ")} · Baton`;
  show(byId("links"), el("a", { href: `/admin/traces/${found.trace_id}?format=otlp`, download: `${found.trace_id}.json` }, "OTLP JSON"));
  if (!summary) return;
  const kind = { finished: "good", failed: "bad", cancelled: "warn" }[summary.status] ?? "";
  show(byId("facts"), ...pairs([
    ["Ending", [pill(summary.status, kind), summary.reason ? ` ${summary.reason}` : "", summary.slo_missed ? " " : "", summary.slo_missed ? pill(`missed ${summary.slo_missed}`, "warn") : ""]],
    ["Started", when(summary.start_ns / 1e6)],
    ["Route", summary.route || NONE],
    ["First token", ns(summary.ttft_ns)],
    ["Whole", ns(summary.end_ns - summary.start_ns)],
    ["Prompt", `${count(summary.prompt_tokens)} tok`],
    ["From cache", summary.prompt_tokens ? `${count(summary.cached_tokens)} tok (${share(summary.cached_tokens / summary.prompt_tokens)})` : NONE],
    ["Answer", `${count(summary.output_tokens)} tok`],
    ["Attempts", count(summary.attempts)],
    ["Tenant", summary.tenant || NONE],
    summary.run && ["Load run", el("a", { href: `/traces?run=${encodeURIComponent(summary.run)}` }, summary.run)],
    ["Trace id", el("code", { class: "wrap" }, found.trace_id)],
  ]));
}

function showSplit(found) {
  if (!found.split) {
    show(byId("split"), empty("No first token: the request ended before one, or its spans are not here yet."));
    return;
  }
  byId("split-note").textContent = `${ms(found.split.total_ns / 1e6)} from the request's head to the first byte of text`;
  show(byId("split"), ...splitView(found.split));
}

// -- waterfall ------------------------------------------------------------------------------------

function showWaterfall(found) {
  const services = SERVICES.filter((name) => found.spans.some((span) => span.service === name));
  const waterfall = new Waterfall(found.spans, found.critical, showSpan);
  const cut = found.spans_total > found.spans.length ? `, ${count(found.spans_total - found.spans.length)} more are not shown` : "";
  byId("waterfall-note").textContent = `${count(found.spans_total)} spans of ${services.length} service${services.length === 1 ? "" : "s"}${cut}`;
  show(byId("legend"), ...services.map((name) => el("span", { class: `key owner ${name}` }, name)), el("span", { class: "key strip-key" }, "the client waits for this (critical path)"), el("span", { class: "muted keys-help" }, "arrow keys move, Enter shows a span"));
  show(byId("waterfall"), waterfall.node);
}

function showSpan(span, waterfall) {
  waterfall.mark(span);
  const begin = waterfall.begin, critical = waterfall.criticalNs(span);
  const attributes = Object.entries(span.attributes).sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, value]) => [el("code", {}, name), el("code", { class: "wrap" }, typeof value === "string" ? value : JSON.stringify(value))]);
  const events = span.events.slice(0, 64).map((event) => el("li", {}, el("time", {}, ms((event.time_ns - begin) / 1e6)), ` ${event.name} `, el("code", { class: "wrap" }, Object.entries(event.attributes).map(([name, value]) => `${name}=${value}`).join(" "))));
  const node = byId("span");
  node.hidden = false;
  show(node,
    el("header", {}, el("h3", { tabindex: "-1" }, span.name), el("span", { class: "muted" }, ` ${span.worker}`), span.error ? pill("error", "bad") : null,
      el("button", { type: "button", class: "quiet", onclick: () => { node.hidden = true; waterfall.focus(waterfall.at); } }, "Close")),
    el("dl", { class: "facts" }, ...pairs([
      ["Begins", ms((span.start_ns - begin) / 1e6)], ["Takes", ms(Math.max(0, span.end_ns - span.start_ns) / 1e6)],
      ["Critical", critical ? ms(critical / 1e6) : "no"], ["Span id", el("code", {}, span.span_id)],
    ])),
    attributes.length ? table("Attributes of the span", [{ name: "Attribute" }, { name: "Value" }], attributes, "compact") : empty("No attributes."),
    events.length ? el("ul", { class: "plain" }, ...events) : null);
}

// -- placement --------------------------------------------------------------------------------------

function candidates(span) {
  return span.events.filter((event) => event.name === "candidate").map((event) => event.attributes)
    .sort((a, b) => Number(Boolean(a.lost)) - Number(Boolean(b.lost)) || a.score_s - b.score_s);
}

function sentence(given, chosen) {
  const of = (name) => given[`baton.place.${name}`];
  if (of("refused")) return `Not placed: ${of("refused")}.`;
  const second = of("runner_up") ? ` Next was ${of("runner_up")}.` : "";
  const copied = of("fetch_blocks") ? ` ${of("fetch_blocks")} blocks are copied from ${of("fetch_from") ?? "the pool"}.` : "";
  const route = { disaggregated: "Handed over, ", colocated: "Colocated, " }[of("route")] ?? "";
  return `${route}on ${chosen?.pair ?? of("winner")}, chosen by ${of("policy")}: ${of("route_reason")}. A first token was expected after ${ms(1000 * (of("estimate_ttft_s") ?? NaN))}.${copied}${second}`;
}

function showPlacement(found) {
  const placed = found.spans.filter((span) => span.name === "scheduler.place");
  if (!placed.length) {
    show(byId("placement"), el("div", { class: "panel" }, empty("The scheduler was not asked, or its span is not here.")));
    return;
  }
  show(byId("placement"), ...placed.map((span) => {
    const rows = candidates(span), skipped = new Set(["pair", "note", "lost", "score_s"]);
    const inSeconds = span.attributes["baton.place.policy"] === "baton";
    const terms = [...new Set(rows.flatMap((row) => Object.keys(row)))].filter((name) => !skipped.has(name) && rows.some((row) => row[name]));
    const columns = [{ name: "Pair" }, { name: inSeconds ? "Score" : "Score (no unit)", number: true }, ...terms.map((name) => ({ name: name.replace(/_s$/, "").replaceAll("_", " "), number: true })), { name: "Why not" }];
    const cells = rows.map((row) => [
      { content: row.lost ? row.pair : [el("strong", {}, row.pair), " ", pill("chosen", "good")], className: "nowrap" }, inSeconds ? ms(1000 * row.score_s) : decimal(row.score_s, 3),
      ...terms.map((name) => ms(1000 * (row[name] ?? 0))), row.lost || row.note || ""]);
    const attempt = span.attributes["baton.attempt"];
    return el("div", { class: "panel" }, el("p", { class: "reason" }, attempt > 1 ? el("strong", {}, `Attempt ${attempt}. `) : null, sentence(span.attributes, rows.find((row) => !row.lost))),
      rows.length ? table("Candidates with the terms of their score", columns, cells, "compact") : null);
  }));
}

// -- the rest -----------------------------------------------------------------------------------------

function showWhatIf(found) {
  const guess = found.what_if;
  if (!guess) {
    const route = found.summary?.route;
    show(byId("whatif"), empty(route === "colocated" ? "It was colocated: nothing was handed over." : "No estimate: there was no handover, or the scheduler does not know the decode worker's costs now."));
    return;
  }
  const most = Math.max(guess.ttft_ms, guess.actual_ttft_ms);
  const bar = (name, value, className) => {
    const part = el("span", { class: `fill ${className}` });
    part.style.width = `${(100 * value) / most}%`;
    return el("div", { class: "versus" }, el("span", {}, name), el("span", { class: "rail", "aria-hidden": "true" }, part), el("strong", {}, ms(value)));
  };
  const gain = guess.ttft_ms - guess.actual_ttft_ms;
  show(byId("whatif"), bar("as it was", guess.actual_ttft_ms, "actual"), bar("colocated", guess.ttft_ms, "guess"),
    el("p", {}, `On ${guess.decode} the ${count(guess.new_tokens)} new tokens${guess.cached_tokens ? ` (${count(guess.cached_tokens)} were cached there)` : ""} would have taken about ${ms(guess.prefill_ms)}: the first token ${ms(Math.abs(gain))} ${gain < 0 ? "earlier" : "later"}.`),
    guess.handoff_ms === null ? null : el("p", {}, `Without the handover decode could have gone on ${ms(guess.handoff_ms)} sooner after it.`),
    el("p", { class: "muted" }, "An estimate from the costs that the scheduler has learnt by now; waiting and what it would have done to others are not in it."));
}

function showHints(found) {
  const told = found.spans.flatMap((span) => Object.entries(span.attributes)).filter(([name]) => name.startsWith("baton.hint."));
  const fate = (value) => { const [outcome, detail] = String(value).split(":"); return [pill(outcome, outcome === "applied" ? "good" : "warn"), detail ? ` ${detail.replaceAll("_", " ")}` : ""]; };
  show(byId("hints"), told.length ? el("dl", { class: "facts" }, ...pairs(told.map(([name, value]) => [name.slice("baton.hint.".length), fate(value)])))
    : empty("The client gave no hints about reuse, or none that is traced."));
}

async function showLogs(name) {
  try {
    const found = await ask(`/admin/logs/${encodeURIComponent(name)}`);
    byId("logs-note").textContent = found.searched ? `${count(found.searched)} files searched` : "";
    if (!found.lines.length) {
      show(byId("logs"), el("div", { class: "panel" }, empty(found.searched ? "No log line names this request. One that goes well writes none." : "No log files lie beside this gateway. Where your logs go, ask for: ", el("code", { class: "wrap" }, `{service=~".+"} |= "${name}"`))));
      return;
    }
    const known = new Set(["ts", "level", "service", "worker", "event", "epoch"]);
    const rows = found.lines.map((line) => [line.ts?.slice(11, 23) ?? NONE, line.worker ?? NONE, line.level ?? NONE, line.event ?? "", el("code", { class: "wrap" }, Object.entries(line).filter(([key]) => !known.has(key)).map(([key, value]) => `${key}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(" "))]);
    show(byId("logs"), table("Log lines", [{ name: "Time" }, { name: "Worker" }, { name: "Level" }, { name: "Event" }, { name: "Fields" }], rows, "panel flush rows"));
  } catch (error) {
    show(byId("logs"), el("p", { class: "notice bad" }, error.message));
  }
}

/** Spans of a request that has just ended come within a second or two. */
async function load(tries) {
  try {
    const found = await ask(`/admin/traces/${encodeURIComponent(id)}`);
    showFacts(found);
    showSplit(found);
    showWaterfall(found);
    showPlacement(found);
    showWhatIf(found);
    showHints(found);
    byId("body").hidden = false;
    const open = found.summary && found.summary.status === "open";
    byId("state").textContent = open ? "The root span is not here: the request still runs, or its spans are on their way." : "";
    byId("state").hidden = !open;
    showLogs(found.trace_id);
    if (open && tries > 0) setTimeout(() => load(tries - 1), AGAIN_MS);
    document.body.dataset.ready = "true";
  } catch (error) {
    if (error.status === 404 && tries > 0) {
      byId("state").textContent = "Not here yet; spans arrive about a second after the answer…";
      setTimeout(() => load(tries - 1), AGAIN_MS);
      return;
    }
    byId("state").className = "notice bad";
    byId("state").textContent = error.status === 404 ? "There is no such trace. It may have been too old to keep, or its id is mistyped." : error.message;
    document.body.dataset.ready = "true";
  }
}

load(TRIES);
