// A small line chart over time, drawn by uPlot (vendor/), with the same numbers as a table.
import { el, table } from "./dom.js";

const { uPlot } = globalThis;
const HEIGHT = 132, LEFT = 56;
const INKS = { a: "--gateway", b: "--prefill", c: "--decode", d: "--scheduler" };
const DASHES = { b: [5, 3] };

/** `series`: [{name, className, points: [[x, y or null], …]}]; `x` and `y` say how to write a value.
 *  `options`: {empty, xName, most} with the least upper end of the axis. */
export class Chart {
  constructor(title, series, { x, y, empty = "nothing yet", xName = "time", most = 0 }) {
    this.title = title;
    this.format = { x, y };
    this.empty = empty;
    this.xName = xName;
    this.most = most;
    this.plot = el("div", { class: "plot" });
    this.drawn = null;
    this.probe = el("span", { hidden: true });
    this.readout = el("p", { class: "readout", "aria-hidden": "true" });
    this.twin = el("div");
    this.details = el("details", { ontoggle: () => this.drawTwin() }, el("summary", {}, "as a table"), this.twin);
    const legend = series.length < 2 ? null : el("p", { class: "keys" },
      ...series.map((entry) => el("span", { class: `key ${entry.className}` }, entry.name)));
    this.node = el("figure", { class: "panel chart" }, el("figcaption", {}, title), legend, this.plot,
      this.probe, this.readout, this.details);
    this.series = series;
    new ResizeObserver(() => this.draw()).observe(this.plot);
    const repaint = () => this.drawn?.redraw(false);
    new MutationObserver(repaint).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  }

  update(series) {
    this.series = series;
    this.draw();
    this.drawTwin();
  }

  draw() {
    const width = this.plot.clientWidth;
    if (!width) return;
    const points = this.series.flatMap((entry) => entry.points).filter(([, y]) => y !== null);
    if (points.length < 2) {
      this.drawn?.destroy();
      this.drawn = null;
      this.plot.replaceChildren(el("p", { class: "empty" }, this.empty));
      this.plot.removeAttribute("role");
      this.readout.textContent = "";
      return;
    }
    const columns = aligned(this.series);
    if (this.drawn) {
      this.drawn.setSize({ width, height: HEIGHT });
      this.drawn.setData(columns);
    } else {
      this.plot.replaceChildren();
      this.drawn = new uPlot(this.options(width), columns, this.plot);
    }
    this.plot.setAttribute("role", "img");
    this.plot.setAttribute("aria-label", `${this.title}; ${this.spoken()}`);
    this.rest();
  }

  /** What uPlot is told: three lines across, the ends of time below, a cursor that reads out. */
  options(width) {
    const soft = () => this.colour("--soft"), font = "11.5px system-ui, sans-serif";
    return {
      width, height: HEIGHT, padding: [8, 30, 0, 0], legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      scales: { x: { time: false }, y: { range: (_, low, high) => [0, ceiling(Math.max(this.most, high ?? 0))] } },
      axes: [
        { stroke: soft, font, size: 24, grid: { show: false }, ticks: { show: false },
          splits: (plot) => [plot.scales.x.min, plot.scales.x.max], values: (_, at) => at.map(this.format.x) },
        { stroke: soft, font, size: LEFT, ticks: { show: false }, grid: { stroke: () => this.colour("--line"), width: 1 },
          splits: (plot) => [0, plot.scales.y.max / 2, plot.scales.y.max],
          values: (_, at) => at.map((value) => (value === 0 ? "0" : this.format.y(value))) },
      ],
      series: [{}, ...this.series.map((entry) => ({
        stroke: () => this.colour(INKS[entry.className]), dash: DASHES[entry.className], width: 1.8,
        points: { show: false },
      }))],
      hooks: { setCursor: [(plot) => this.point(plot.cursor.idx)] },
    };
  }

  /** A colour of the stylesheet as the canvas takes it, in the theme of now. */
  colour(name) {
    this.probe.style.color = `var(${name})`;
    return getComputedStyle(this.probe).color;
  }

  spoken() {
    return this.series.map((entry) => {
      const last = entry.points.findLast(([, y]) => y !== null);
      return `${entry.name}: ${last ? this.format.y(last[1]) : "nothing"}`;
    }).join(", ");
  }

  rest() {
    this.readout.textContent = this.spoken();
  }

  /** The values under the cursor; nothing there: the last ones. */
  point(index) {
    const told = index === null || index === undefined ? []
      : this.series.filter((_, number) => this.drawn?.data[number + 1][index] != null);
    if (!told.length) {
      this.rest();
      return;
    }
    const values = told.map((entry) =>
      `${entry.name}: ${this.format.y(this.drawn.data[this.series.indexOf(entry) + 1][index])}`);
    this.readout.textContent = `${this.format.x(this.drawn.data[0][index])} · ${values.join(", ")}`;
  }

  drawTwin() {
    if (!this.details.open) return;
    const columns = [{ name: this.xName }, ...this.series.map((entry) => ({ name: entry.name, number: true }))];
    const xs = (this.series[0]?.points ?? []).map(([x]) => x);
    const step = Math.max(1, Math.ceil(xs.length / 30));
    const rows = xs.map((x, index) => [this.format.x(x), ...this.series.map((entry) => {
      const y = entry.points[index]?.[1];
      return y === null || y === undefined ? "–" : this.format.y(y);
    })]).filter((_, index) => index % step === 0);
    this.twin.replaceChildren(table(this.title, columns, rows, "small"));
  }
}

/** Columns as uPlot wants them: every x of any series, and each series' y or null there. One series
 *  alone may have several y at one x, as a curve of shares has where many were equally fast. */
function aligned(series) {
  if (series.length === 1) return [0, 1].map((part) => series[0].points.map((point) => point[part]));
  const xs = [...new Set(series.flatMap((entry) => entry.points.map(([x]) => x)))].sort((a, b) => a - b);
  const columns = series.map((entry) => {
    const found = new Map(entry.points);
    return xs.map((x) => found.get(x) ?? null);
  });
  return [xs, ...columns];
}

/** The next round number. */
function ceiling(value) {
  if (value <= 0) return 1;
  const scale = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * scale).find((step) => step >= value);
}
