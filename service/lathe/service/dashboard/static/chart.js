// Charts, drawn by uPlot in the page's colours. Each has a legend with the values at the pointer, which the arrow keys
// move too. Series differ in dashes and filled marks, not in colour alone.

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { fill, h } from "./dom.js";

const HEIGHT = 210;
const FONT = '12px system-ui, "Liberation Sans", sans-serif';
const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]];
const HEADROOM = 1.06;

/** Charts that are drawn, by the element that they are drawn in. */
const drawn = new Map();

/**
 * A chart as a figure. One with the same id that is on the page already is updated, so that the pointer stays in it.
 * @param {string} chart.id unique on the page.
 * @param {string} chart.title shown above.
 * @param {string|null} chart.says one sentence on how to read it.
 * @param {Array<{name: string, points: Array<[number, number|null]>, kind: string}>} chart.series null leaves a gap;
 *   `kind` is `line` (the default), `marked` for a line with a mark at each point, `marks` or `bars`.
 * @param {object} chart.x the axis: `title`, `show` (value to text), `log` (base of a logarithmic axis), `from` and `to`
 *   if not the ends of the data, `least` that it spans, `isTime` if the last values are the current ones.
 * @param {object} chart.y likewise.
 */
export function chart({ says = null, ...spec }) {
  const there = document.getElementById(`chart-${spec.id}`);
  if (there?.names === namesOf(spec)) {
    there.update(spec);
    return there;
  }
  const keys = spec.series.map((_, index) => h("i", { class: `key s${index % 6} d${index % 4}` }));
  const legend = h("ul", { class: "legend" });
  const place = h("div", { class: "plot", role: "img", tabindex: "0", id: `plot-${spec.id}` });
  const spoken = h("span", { class: "unseen", role: "status" });
  const figure = h(
    "figure",
    { class: "chart", id: `chart-${spec.id}` },
    h("figcaption", {}, spec.title, spec.y.title ? h("span", { class: "hint" }, `, ${spec.y.title}`) : null),
    place,
    legend,
    spoken,
    says ? h("p", { class: "hint" }, says) : null,
  );
  const state = { spec, place, keys, legend, plot: null, at: null };
  figure.names = namesOf(spec);
  figure.update = (next) => update(state, next);
  place.addEventListener("keydown", (event) => step(state, event, spoken));
  place.addEventListener("blur", () => setTimeout(leave, 0, state)); // a redraw of the page gives the focus back at once
  drawn.set(place, state);
  update(state, spec);
  sizes.observe(place);
  return figure;
}

/** A chart that has the same names takes the same legend. */
function namesOf({ series }) {
  return series.map(({ name }) => name).join("\n");
}

/** Take new data. */
function update(state, spec) {
  state.spec = spec;
  state.data = uPlot.join(
    spec.series.map(({ points }) => {
      const sorted = points.toSorted(([a], [b]) => a - b);
      return [sorted.map(([x]) => x), sorted.map(([, y]) => y)];
    }),
  );
  const values = spec.series.map((one) => `${one.name}: ${describe(one, spec)}`);
  state.place.setAttribute("aria-label", `${spec.title}. ${values.join("; ")}`);
  state.plot?.setData(state.data);
  readAt(state, state.at);
}

/** Describe a series in words: its current value, or all its points. */
function describe({ points }, { x, y }) {
  const known = points.filter(([, value]) => value !== null);
  const texts = x.isTime
    ? known.slice(-1).map(([, value]) => y.show(value))
    : known.map(([at, value]) => `${y.show(value)} at ${x.show(at)}`);
  return texts.join(", ") || "nothing yet";
}

/** Write the values at a position of the data into the legend; without one, the current values. */
function readAt({ spec, data, keys, legend }, index) {
  const reading = (one, position) => {
    const last = spec.x.isTime ? one.points.findLast(([, value]) => value !== null)?.[1] : null;
    const value = index === null ? last : data[position + 1][index];
    return value === null || value === undefined ? "" : spec.y.show(value);
  };
  const items = spec.series.map((one, position) => h("li", {}, keys[position], one.name, " ", h("b", {}, reading(one, position))));
  fill(legend, items, index === null ? null : h("li", { class: "hint" }, `at ${spec.x.show(data[0][index])}`));
}

/** Take the pointer off the chart, unless the keyboard still is there. */
function leave({ plot, place }) {
  if (document.activeElement !== place) {
    plot?.setCursor({ left: -10, top: -10 });
  }
}

/** Move along the data by the arrow keys, and say what is there. */
function step(state, event, spoken) {
  const last = state.data[0].length - 1;
  const moves = { ArrowLeft: (state.at ?? last + 1) - 1, ArrowRight: (state.at ?? -1) + 1, Home: 0, End: last };
  if (!(event.key in moves) || !state.plot || last < 0) {
    return;
  }
  event.preventDefault();
  const index = Math.max(0, Math.min(last, moves[event.key]));
  const { plot, spec, data } = state;
  plot.setCursor({ left: plot.valToPos(data[0][index], "x"), top: plot.over.clientHeight / 2 });
  const values = spec.series
    .map(({ name }, position) => [name, data[position + 1][index]])
    .filter(([, value]) => value !== null && value !== undefined);
  fill(spoken, `${spec.x.show(data[0][index])}: ${values.map(([name, value]) => `${name} ${spec.y.show(value)}`).join(", ")}`);
}

/** Draw in a place that has got a width, and forget a place that is no longer on the page. */
const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const state = drawn.get(target);
    if (!target.isConnected) {
      state?.plot?.destroy();
      drawn.delete(target);
      sizes.unobserve(target);
    } else if (state?.plot) {
      state.plot.setSize({ width: target.clientWidth, height: HEIGHT });
    } else if (target.clientWidth) {
      state.plot = new uPlot(optionsOf(state), state.data, target);
    }
  }
});

function optionsOf(state) {
  const { spec, place, keys } = state;
  const style = (name, element = place) => getComputedStyle(element)[name];
  const powers = (_plot, values) => values.map((value) => (isPower(value) ? value : null));
  const axis = ({ title, show, log }, more) => ({
    stroke: () => style("color"),
    grid: { stroke: () => style("borderTopColor"), width: 1, ...(log === 10 ? { filter: powers } : {}) },
    ticks: { show: false },
    font: FONT,
    labelFont: FONT,
    label: title || null,
    labelSize: 16,
    values: (_plot, values) => values.map((value) => (value === null ? "" : show(value))),
    ...(log === 10 ? { filter: powers } : {}),
    ...(log === 2 ? { splits: powersOfTwo, filter: (_plot, values) => values } : {}),
    ...more,
  });
  return {
    width: place.clientWidth,
    height: HEIGHT,
    padding: [8, 14, 0, 4],
    legend: { show: false },
    cursor: { y: false, drag: { setScale: false, x: false, y: false }, points: { size: 8 } },
    scales: { x: { time: false, ...scaleOf(state, "x") }, y: scaleOf(state, "y") },
    axes: [
      axis(spec.x, { grid: { show: false }, space: 60, size: 26, gap: 6 }),
      axis({ ...spec.y, title: null }, { space: 32, gap: 4, size: widthOf }),
    ],
    series: [{}, ...spec.series.map((one, index) => seriesOf(one, index, () => style("color", keys[index])))],
    hooks: {
      setCursor: [
        ({ cursor }) => {
          state.at = cursor.idx ?? null;
          readAt(state, state.at);
        },
      ],
    },
  };
}

function isPower(value) {
  return Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-6;
}

/** Every second power of two between two values. */
function powersOfTwo(_plot, _axis, low, high) {
  const ticks = [];
  for (let tick = 2 ** Math.ceil(Math.log2(low)); tick <= high; tick *= 4) {
    ticks.push(tick);
  }
  return ticks;
}

/** Room for the longest figure of an axis. */
function widthOf(_plot, values) {
  return 12 + 7 * Math.max(1, ...(values ?? []).map((text) => text.length));
}

/** A scale whose ends are read from the chart's present data. */
function scaleOf(state, name) {
  const { log, marginal = 0 } = state.spec[name];
  const range = (_plot, low, high) => {
    const { from, to, least = 0 } = state.spec[name];
    const start = from ?? low ?? 0;
    if (log) {
      return name === "x" ? [start / 1.25, (to ?? high ?? 1) * 1.25] : uPlot.rangeLog(start || 1e-6, high || 1, log, true);
    }
    const end = to ?? Math.max(start + (high - start) * (name === "y" ? HEADROOM : 1), start + least);
    return [start - marginal, (end > start ? end : start + 1) + marginal];
  };
  return { range, ...(log ? { distr: 3, log } : {}) };
}

function seriesOf({ name, kind = "line" }, index, stroke) {
  const marks = { show: kind !== "line", size: 8, width: 2, stroke, ...(index % 2 ? { fill: "transparent" } : { fill: stroke }) };
  if (kind === "bars") {
    return { label: name, stroke, fill: stroke, width: 0, paths: uPlot.paths.bars({ size: [0.75, 80] }), points: { show: false } };
  }
  return {
    label: name,
    stroke,
    width: 2,
    dash: DASHES[index % DASHES.length],
    points: marks,
    ...(kind === "marks" ? { paths: () => null } : {}),
  };
}

/** Another theme has other colours. */
function redraw() {
  for (const { plot } of drawn.values()) {
    plot?.redraw(false);
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
