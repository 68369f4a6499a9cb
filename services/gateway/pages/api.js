// JSON from this gateway, and pages that look again and again.

const PATIENCE_MS = 8000;

/** The answer's JSON. Throws an Error whose message can be shown. */
export async function ask(path) {
  let answer;
  try {
    answer = await fetch(path, { signal: AbortSignal.timeout(PATIENCE_MS), cache: "no-store" });
  } catch {
    throw new Error("The gateway does not answer. Is it still running?");
  }
  const body = await answer.json().catch(() => null);
  if (answer.ok && body !== null) return body;
  const told = body?.error?.message;
  throw Object.assign(new Error(told ? `${told[0].toUpperCase()}${told.slice(1)}.` : `The gateway answers ${answer.status}.`),
    { status: answer.status });
}

/** Call `look` now and every `period` ms while the page is visible; a failure is told and does not
 *  end it. */
export function repeat(look, period, failed) {
  let timer = 0;
  const turn = async () => {
    clearTimeout(timer);
    if (document.visibilityState === "visible") {
      try { await look(); } catch (error) { failed(error); }
    }
    timer = setTimeout(turn, period);
  };
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "visible") turn();
  });
  turn();
}
