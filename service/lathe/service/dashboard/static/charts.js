// Charts as inline SVG. Series differ in their dashes and in the mark at the end of each, not in colour alone.

import { h, svg } from "./dom.js";
import { linear, logarithmic, ticksOf } from "./scales.js";

const WIDTH = 360;
const HEIGHT = 200;
const MARGIN = { left: 42, right: 12, top: 10, bottom: 34 };
const HEADROOM = 1.06;
const MARKS = ["circle", "square", "triangle", "diamond"];

/**
 * Lines over a common x.
 * @param {object} chart
 * @param {string} chart.title shown above.
 * @param {string} chart.says one sentence: how to read it.
 * @param {Array<{name: string, points: Array<[number, number|null]>}>} chart.series null leaves a gap.
 * @param {{title: string, show: function, log: boolean, from: number, to: number, least: number}} chart.x its axis;
 *   `from` and `to` where the data do not say, `least` how much it spans at least.
 * @param {object} chart.y likewise.
 * @param {boolean} chart.marks whether each point is marked.
 */
export function lineChart({ title, says = null, series, x, y, marks = false, height = HEIGHT }) {
  const all = series.flatMap((one) => one.points).filter(([, value]) => value !== null && Number.isFinite(value));
  const across = scaleOf(
    x,
    all.map((point) => point[0]),
    MARGIN.left,
    WIDTH - MARGIN.right,
  );
  const up = scaleOf(
    y,
    all.map((point) => point[1]),
    height - MARGIN.bottom,
    MARGIN.top,
  );
  const told = series.map((one) => `${one.name}: ${lastOf(one.points, y.show)}`).join("; ");
  const picture = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": `${title}. ${told}` },
    yAxis(up, y),
    xAxis(across, x, height),
    series.map((one, index) => lineOf(one, index, across, up, marks)),
  );
  const sentence = says ? h("p", { class: "hint" }, says) : null;
  const legend = series.length > 1 ? legendOf(series.map((one) => one.name)) : null;
  return h(
    "figure",
    { class: "chart" },
    h("figcaption", {}, title, y.title ? h("span", { class: "hint" }, `, ${y.title}`) : null),
    picture,
    legend,
    sentence,
  );
}

/**
 * Points with their names beside them.
 * @param {Array<{name: string, points: Array<[number, number, string]>}>} chart.series its points are x, y and name;
 *   the names of the first series are written into the picture.
 * @param {object} chart.x its axis, as of `lineChart`; `chart.y` likewise.
 */
export function scatterChart({ title, says, series, x, y, height = 1.3 * HEIGHT }) {
  const values = series.flatMap((one) => one.points);
  const across = scaleOf(
    x,
    values.map((point) => point[0]),
    MARGIN.left + 8,
    WIDTH - MARGIN.right - 8,
  );
  const up = scaleOf(
    y,
    values.map((point) => point[1]),
    height - MARGIN.bottom,
    MARGIN.top,
  );
  const told = series[0].points.map(([at, value, name]) => `${name}: ${x.show(at)}, ${y.show(value)}`).join("; ");
  const drawn = series.map((one, index) => [
    svg(
      "g",
      { class: `series s${index}` },
      one.points.map(([at, value]) => markOf(MARKS[index % MARKS.length], across.place(at), up.place(value))),
    ),
    index === 0 ? one.points.map(([at, value, name]) => besideMark(across.place(at), up.place(value), name)) : null,
  ]);
  return h(
    "figure",
    { class: "chart" },
    h("figcaption", {}, title),
    svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": `${title}. ${told}` },
      yAxis(up, y),
      xAxis(across, x, height),
      drawn,
    ),
    legendOf(series.map((one) => one.name)),
    h("p", { class: "hint" }, says),
  );
}

/** The name of a mark, on the side where there is more room, below it. */
function besideMark(left, top, name) {
  const before = left > WIDTH / 2;
  const anchor = before ? "end" : "start";
  return svg("text", { class: "tick", x: left + (before ? 2 : -2), y: top + 14, "text-anchor": anchor }, name);
}

function lastOf(points, show) {
  const last = points.findLast(([, value]) => value !== null);
  return last ? show(last[1]) : "nothing yet";
}

function scaleOf(axis, values, start, end) {
  const from = axis.from ?? Math.min(...values);
  const to = axis.to ?? Math.max(...values);
  if (axis.log) {
    return logarithmic(Math.max(from, 1e-12), Math.max(to, 1e-12), start, end);
  }
  const [low, high] = values.length || axis.to !== undefined ? [from, to] : [0, 1];
  const top = Math.max(high, low + (axis.least ?? (high > low ? 0 : 1)));
  return linear(low, axis.to === undefined ? low + (top - low) * HEADROOM : top, start, end);
}

function yAxis(scale, axis) {
  return ticksOf(scale).map((value) => {
    const at = scale.place(value);
    return [
      svg("line", { class: "grid", x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: at, y2: at }),
      svg("text", { class: "tick", x: MARGIN.left - 6, y: at + 4, "text-anchor": "end" }, axis.show(value)),
    ];
  });
}

function xAxis(scale, axis, height) {
  const base = height - MARGIN.bottom;
  const ticks = axis.ticks ?? ticksOf(scale);
  return [
    svg("line", { class: "base", x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: base, y2: base }),
    ...ticks.map((value) =>
      svg("text", { class: "tick", x: scale.place(value), y: base + 14, "text-anchor": "middle" }, axis.show(value)),
    ),
    svg("text", { class: "axis", x: WIDTH - MARGIN.right, y: height - 4, "text-anchor": "end" }, axis.title),
  ];
}

function lineOf(one, index, across, up, marks) {
  const placed = one.points.map(([at, value]) => (value === null ? null : [across.place(at), up.place(value)]));
  let path = "";
  placed.forEach((point, position) => {
    if (point !== null) {
      const goesOn = position > 0 && placed[position - 1] !== null;
      path += `${goesOn ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
    }
  });
  const shown = placed.filter((point) => point !== null);
  const marked = marks ? shown : shown.slice(-1);
  return svg(
    "g",
    { class: `series s${index}` },
    path ? svg("path", { d: path }) : null,
    marked.map(([left, top]) => markOf(MARKS[index % MARKS.length], left, top)),
  );
}

/** A mark at a place; its shape tells the series. */
function markOf(shape, left, top, size = 3.2) {
  if (shape === "circle") {
    return svg("circle", { cx: left, cy: top, r: size });
  }
  if (shape === "square") {
    return svg("rect", { x: left - size, y: top - size, width: 2 * size, height: 2 * size });
  }
  const corners =
    shape === "triangle"
      ? [
          [0, -1.2],
          [1.2, 1],
          [-1.2, 1],
        ]
      : [
          [0, -1.4],
          [1.4, 0],
          [0, 1.4],
          [-1.4, 0],
        ];
  return svg("polygon", { points: corners.map(([a, b]) => `${left + a * size},${top + b * size}`).join(" ") });
}

function legendOf(names) {
  const key = (index) =>
    svg(
      "svg",
      { viewBox: "0 0 26 10", width: 26, height: 10, "aria-hidden": "true" },
      svg(
        "g",
        { class: `series s${index}` },
        svg("path", { d: "M1 5L25 5" }),
        markOf(MARKS[index % MARKS.length], 13, 5),
      ),
    );
  return h(
    "ul",
    { class: "legend" },
    names.map((name, index) => h("li", {}, key(index), " ", name)),
  );
}

/**
 * Bars side by side, each with its figure written on it.
 * @param {Array<{name: string, value: number|null, series: number}>} chart.bars `series` picks colour and hatching.
 * @param {number} chart.to what a full bar stands for.
 */
export function barChart({ title, says = null, bars, to, show, line = null }) {
  const height = 26 * bars.length + (line ? 34 : 10);
  const left = 128;
  const scale = linear(0, to || 1, left, WIDTH - 56);
  const rows = bars.map((bar, index) => {
    const top = 6 + 26 * index;
    const end = scale.place(Math.min(bar.value ?? 0, to || 1));
    return [
      svg("text", { class: "name", x: left - 8, y: top + 14, "text-anchor": "end" }, bar.name),
      svg("rect", {
        class: `bar s${bar.series ?? 0}`,
        x: left,
        y: top,
        width: Math.max(end - left, 1),
        height: 19,
        rx: 2,
      }),
      svg("text", { class: "figure", x: end + 5, y: top + 14 }, show(bar.value)),
    ];
  });
  const bottom = 26 * bars.length + 8;
  const marked = line && [
    svg("line", { class: "threshold", x1: scale.place(line.value), x2: scale.place(line.value), y1: 2, y2: bottom }),
    svg("text", { class: "tick", x: scale.place(line.value), y: bottom + 14, "text-anchor": "middle" }, line.name),
  ];
  const told = bars.map((bar) => `${bar.name}: ${show(bar.value)}`).join("; ");
  return h(
    "figure",
    { class: "chart" },
    h("figcaption", {}, title),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": `${title}. ${told}` }, marked, rows),
    says ? h("p", { class: "hint" }, says) : null,
  );
}
