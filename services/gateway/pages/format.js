// Numbers and times for people. Absent values become a dash, never a zero.

export const NONE = "–";

/** Milliseconds with about three digits; from 1 s on, seconds. */
export function ms(value) {
  if (!Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (size === 0) return "0 ms";
  if (size >= 1000) return `${(value / 1000).toFixed(size >= 10_000 ? 1 : 2)} s`;
  if (size >= 100) return `${value.toFixed(0)} ms`;
  if (size >= 10) return `${value.toFixed(1)} ms`;
  return `${value.toFixed(2)} ms`;
}

export const ns = (value) => (value === null || value === undefined ? NONE : ms(value / 1e6));
export const seconds = (value) => (value === null || value === undefined ? NONE : ms(value * 1e3));

export function count(value) {
  return Number.isFinite(value) ? Math.round(value).toLocaleString("en") : NONE;
}

export function decimal(value, digits = 1) {
  return Number.isFinite(value)
    ? value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }) : NONE;
}

export function share(value) {
  return Number.isFinite(value) ? `${(100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %` : NONE;
}

export function bytes(value) {
  if (!Number.isFinite(value)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit === 0 || value >= 100 ? value.toFixed(0) : value.toFixed(1)} ${units[unit]}`;
}

/** Clock time today, date and time before that. */
export function when(milliseconds) {
  const moment = new Date(milliseconds);
  const today = new Date().toDateString() === moment.toDateString();
  const time = moment.toLocaleTimeString("en-GB");
  return today ? time : `${moment.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" })}, ${time.slice(0, 5)}`;
}

export function ago(milliseconds, now) {
  const passed = Math.max(0, (now - milliseconds) / 1000);
  if (passed < 90) return `${Math.round(passed)} s ago`;
  if (passed < 5400) return `${Math.round(passed / 60)} min ago`;
  return passed < 129_600 ? `${Math.round(passed / 3600)} h ago` : `${Math.round(passed / 86_400)} d ago`;
}

/** Shares in tenths of a percent that add up to exactly 100.0 (largest remainder). */
export function percents(values) {
  const total = values.reduce((sum, value) => sum + value, 0);
  if (total <= 0) return values.map(() => 0);
  const exact = values.map((value) => (1000 * value) / total);
  const whole = exact.map(Math.floor);
  const order = exact.map((value, index) => [value - whole[index], index]).sort((a, b) => b[0] - a[0]);
  let left = 1000 - whole.reduce((sum, value) => sum + value, 0);
  for (const [, index] of order) {
    if (left <= 0) break;
    whole[index] += 1;
    left -= 1;
  }
  return whole.map((value) => value / 10);
}
