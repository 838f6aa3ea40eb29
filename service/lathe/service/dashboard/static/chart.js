// Charts: uPlot in the page's colours, told in words to those who do not see them, and read by the arrow keys.

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { fill, h } from "./dom.js";

const HEIGHT = 210;
const FONT = '12px system-ui, "Liberation Sans", sans-serif';
const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]];
const BORDERS = ["solid", "dashed", "dotted", "double"];

/** Charts on the page: the specification, data and uPlot of each, by the element that it is drawn in. */
const drawn = new Map();

/**
 * Create a chart as a figure. If the page has one with this id and series, update and return that.
 * @param {string} chart.id unique on the page.
 * @param {string} chart.title shown above.
 * @param {string|null} chart.says one sentence on how to read it.
 * @param {Array<{name: string, points: Array<[number, number|null]>, kind: string}>} chart.series null leaves a gap;
 *   `kind` is `line` (the default), `marked` for a line with a mark at each point, `marks` or `bars`.
 * @param {object} chart.x the axis: `title`, `show` (value to text), `log` (base of a logarithmic axis), `from` and
 *   `to` if not the ends of the data, `least` that it spans, `isTime` if the last values are the current ones.
 * @param {object} chart.y likewise.
 */
export function chart({ says = null, ...spec }) {
  const names = spec.series.map(({ name }) => name).join("\n");
  const there = document.getElementById(`chart-${spec.id}`);
  if (there?.names === names) {
    update(drawn.get(there.querySelector(".plot")), spec);
    return there;
  }
  const place = h("div", { class: "plot", role: "img", tabindex: "0", id: `plot-${spec.id}` });
  const state = {
    place,
    legend: h("div", { class: "legend" }),
    spoken: h("span", { class: "unseen", role: "status" }),
  };
  const unit = spec.y.title ? h("span", { class: "hint" }, `, ${spec.y.title}`) : null;
  const how = says ? h("p", { class: "hint" }, says) : null;
  const caption = h("figcaption", {}, spec.title, unit);
  const figure = h(
    "figure",
    { class: "chart", id: `chart-${spec.id}` },
    caption,
    place,
    state.legend,
    state.spoken,
    how,
  );
  figure.names = names;
  update(state, spec);
  drawn.set(place, state);
  sizes.observe(place);
  place.addEventListener("keydown", (event) => step(state, event));
  place.addEventListener("blur", () => setTimeout(leave, 0, state)); // later: a redraw gives the focus back at once
  return figure;
}

function update(state, spec) {
  const columns = spec.series.map(({ points }) => points.toSorted(([a], [b]) => a - b));
  state.spec = spec;
  state.data = uPlot.join(columns.map((points) => [points.map(([x]) => x), points.map(([, y]) => y)]));
  state.plot?.setData(state.data);
  const told = spec.series.map((one) => `${one.name}: ${describe(one.points, spec)}`);
  state.place.setAttribute("aria-label", `${spec.title}. ${told.join("; ")}`);
}

/** Describe a series in words: its current value, or all its points. */
function describe(points, { x, y }) {
  const known = points.filter(([, value]) => value !== null);
  const shown = x.isTime ? known.slice(-1) : known;
  return shown.map(([at, value]) => (x.isTime ? "" : `${x.show(at)}: `) + y.show(value)).join(", ") || "nothing yet";
}

/** Move along the data by the arrow keys, and say what is there. */
function step({ plot, data: [xs], at, spoken, legend }, event) {
  const moves = { ArrowLeft: (at ?? xs.length) - 1, ArrowRight: (at ?? -1) + 1, Home: 0, End: xs.length - 1 };
  if (event.key in moves && plot && xs.length) {
    event.preventDefault();
    const index = Math.max(0, Math.min(xs.length - 1, moves[event.key]));
    plot.setCursor({ left: plot.valToPos(xs[index], "x"), top: HEIGHT / 2 });
    const rows = [...legend.querySelectorAll("tr")].filter((row) => row.lastChild.textContent !== "");
    fill(spoken, rows.map((row) => [...row.cells].map((cell) => cell.textContent).join(" ")).join(", "));
  }
}

/** Take the pointer off a chart that the keyboard has left. */
function leave({ plot, place }) {
  if (document.activeElement !== place) {
    plot?.setCursor({ left: -10, top: -10 });
  }
}

const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const state = drawn.get(target);
    if (!target.isConnected) {
      state?.plot?.destroy();
      drawn.delete(target);
      sizes.unobserve(target);
    } else if (state.plot) {
      state.plot.setSize({ width: target.clientWidth, height: HEIGHT });
    } else if (target.clientWidth) {
      state.plot = new uPlot(optionsOf(state), state.data, target);
    }
  }
});

/** The options of uPlot. Colours are read from the style sheet at each drawing: those of a series from its legend. */
function optionsOf(state) {
  const { spec, place, legend } = state;
  const text = () => getComputedStyle(place).color;
  const line = () => getComputedStyle(place).borderTopColor;
  const ofSeries = (_plot, index) => getComputedStyle(legend.querySelectorAll("tr")[index]).color;
  const axis = ({ show, log }, more) => ({
    stroke: text,
    ticks: { show: false },
    font: FONT,
    labelFont: FONT,
    labelSize: 16,
    values: (_plot, values) => values.map((value) => (value === null ? "" : show(value))),
    ...(log
      ? { splits: (_plot, _axis, low, high) => powers(log === 2 ? 4 : log, low, high), filter: (_plot, all) => all }
      : {}),
    ...more,
  });
  return {
    width: place.clientWidth,
    height: HEIGHT,
    padding: [8, 14, 0, 4],
    legend: {
      mount: (_plot, table) => legend.append(table),
      markers: { width: 3, dash: (_plot, index) => BORDERS[(index - 1) % 4], fill: () => "transparent" },
    },
    cursor: {
      y: false,
      drag: { x: false, y: false, setScale: false },
      points: { size: 8 },
      bind: { click: () => null },
    },
    scales: { x: { time: false, ...scaleOf(state, "x") }, y: scaleOf(state, "y") },
    axes: [
      axis(spec.x, { label: spec.x.title, grid: { show: false }, space: 60, size: 26, gap: 6 }),
      axis(spec.y, { grid: { stroke: line, width: 1 }, space: 32, gap: 4, size: widthOf }),
    ],
    series: [
      { label: spec.x.title, value: (_plot, value) => (value === null ? "" : spec.x.show(value)) },
      ...spec.series.map((one, index) => ({
        ...seriesOf(one, index, ofSeries),
        value: (...at) => reading(state, index, at),
      })),
    ],
    hooks: { setCursor: [({ cursor }) => (state.at = cursor.idx)] },
  };
}

/** The value of a series at the pointer, for the legend; without a pointer its current value, if it has one. */
function reading({ spec }, index, [, value, , position]) {
  const current = spec.x.isTime ? spec.series[index].points.findLast(([, known]) => known !== null)?.[1] : null;
  const shown = position === null || position === undefined ? current : value;
  return shown === null || shown === undefined ? "" : spec.y.show(shown);
}

/** The powers of a number between two values. */
function powers(base, low, high) {
  const first = Math.ceil(Math.log(low) / Math.log(base) - 1e-9);
  const count = Math.floor(Math.log(high) / Math.log(base) + 1e-9) - first + 1;
  return Array.from({ length: Math.max(0, count) }, (_, index) => base ** (first + index));
}

/** Room for the longest label of an axis. */
function widthOf(_plot, labels) {
  return 12 + 7 * Math.max(1, ...(labels ?? []).map((label) => label.length));
}

/** A scale whose ends are those of the chart's present data, unless the axis says others. */
function scaleOf(state, name) {
  const { log } = state.spec[name];
  const range = (_plot, low, high) => {
    const { from, to, least = 0 } = state.spec[name];
    const start = from ?? low ?? 0;
    if (log) {
      return name === "x" ? [start / 1.25, high * 1.25] : uPlot.rangeLog(start || 1e-6, high || 1, log, true);
    }
    const headroom = name === "y" ? 1.06 : 1;
    const end = to ?? Math.max(start + (high - start) * headroom, start + least);
    return [start, end > start ? end : start + 1];
  };
  return { range, ...(log ? { distr: 3, log } : {}) };
}

function seriesOf({ name, kind = "line" }, index, stroke) {
  const shared = { label: name, class: `s${index % 6}`, stroke };
  if (kind === "bars") {
    return {
      ...shared,
      fill: stroke,
      width: 0,
      paths: uPlot.paths.bars({ size: [0.75, 80] }),
      points: { show: false },
    };
  }
  const points = { show: kind !== "line", size: 8, width: 2, stroke, fill: index % 2 ? "transparent" : stroke };
  return { ...shared, width: 2, dash: DASHES[index % 4], points, ...(kind === "marks" ? { paths: () => null } : {}) };
}

/** Draw all charts again in the colours of another theme. */
function redraw() {
  for (const { plot } of drawn.values()) {
    plot?.redraw(false);
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
