// Cosines among a few vectors, and a table of them whose colours repeat the numbers. uPlot has no heat map.

import { h, scroller } from "./dom.js";

const NOTED = 0.05;

/** Return the cosines of rows with one another, as a square list of lists. */
export function cosines(rows) {
  const lengths = rows.map((row) => Math.sqrt(row.reduce((sum, value) => sum + value * value, 0)) || 1);
  return rows.map((a, i) => rows.map((b, j) => dot(a, b) / (lengths[i] * lengths[j])));
}

function dot(a, b) {
  return a.reduce((sum, value, index) => sum + value * b[index], 0);
}

/** Return the entries above the diagonal: one for each pair of rows. */
export function pairsOf(matrix) {
  return matrix.flatMap((row, i) => row.slice(i + 1));
}

/** Return the mean cosine of different rows. */
export function meanOfPairs(matrix) {
  const pairs = pairsOf(matrix);
  return pairs.reduce((sum, value) => sum + value, 0) / pairs.length;
}

/** Return for each row the position of the most similar other row. */
export function nearest(matrix) {
  return matrix.map((row, i) =>
    row.reduce((best, value, j) => (j !== i && (best < 0 || value > row[best]) ? j : best), -1),
  );
}

/**
 * Create a table of cosines, numbered as the texts.
 * @param {Array<Array<number>>|null} earlier cosines to mark differences from.
 */
export function heatTable(caption, matrix, earlier = null) {
  const numbers = matrix.map((_, index) => String(index + 1));
  const row = (values, i) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, numbers[i]),
      values.map((value, j) => cell(value, i === j ? null : (earlier?.[i][j] ?? null), i === j)),
    );
  const cells = h(
    "table",
    { class: "heat" },
    h("caption", { class: "unseen" }, caption),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("td", {}),
        numbers.map((name) => h("th", { scope: "col" }, name)),
      ),
    ),
    h("tbody", {}, matrix.map(row)),
  );
  return h("div", {}, h("h3", {}, caption), scroller(caption, cells));
}

function cell(value, before, own) {
  const change = before === null ? 0 : value - before;
  const noted = Math.abs(change) >= NOTED;
  const mark = noted ? h("small", {}, `${change > 0 ? "▲" : "▼"}${short(Math.abs(change))}`) : null;
  const made = h("td", { class: own ? "own" : null }, short(value), mark);
  made.style.setProperty("--heat", Math.max(0, Math.min(1, value)).toFixed(3));
  return made;
}

/** Format with two digits and without the zero before the point. */
function short(value) {
  return value
    .toFixed(2)
    .replace(/^(-?)0\./, "$1.")
    .replace(/^-\.00$/, ".00")
    .replace("-", "−");
}
