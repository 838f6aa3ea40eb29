// Drift: how far live traffic has moved from the rows that a chain was fitted on.

import { ApiError, get } from "./api.js";
import { chart } from "./chart.js";
import { badge, h, section } from "./dom.js";
import { count, moment, number, percent } from "./format.js";

const SURE_ROWS = 1000; // with fewer rows, no chain is called stale

/** Load a version's drift; `unknown` says why there is none. */
export async function loadDrift(ref, options) {
  try {
    return await get(`chains/${ref}/drift`, options);
  } catch (error) {
    if (error instanceof ApiError && error.status >= 400) {
      return { unknown: error.message, encoders: [] };
    }
    throw error;
  }
}

/** Draw the drift as a section. */
export function drawDrift(found) {
  const empty = "No requests have used this version since the server started, so there is nothing to compare yet.";
  return section(
    "Drift of live traffic",
    found.unknown ? h("p", {}, found.unknown) : null,
    found.encoders.length === 0 && !found.unknown ? h("p", {}, empty) : null,
    found.encoders.map((one, index) => drawEncoder(one, found.threshold, index)),
  );
}

function drawEncoder(one, threshold, index) {
  const spread = one.noise === null ? "" : ` ± ${number(one.noise, 3)}`;
  const tiles = [
    [
      "Out of domain",
      `${number(one.out_of_domain)}${spread}`,
      "Mean rank of live rows among held-out rows, by distance. 0.5: like the rows of the fit; 1: farther than all. " +
        `The version is stale when the whole interval is above ${number(threshold)}.`,
    ],
    [
      "Cosine of the mean to that of the fit",
      number(one.mean_cosine),
      "1: live texts have the same direction in common as the rows of the fit.",
    ],
    [
      "Length of the mean, live and fit",
      `${number(one.mean_norm.live)}, ${number(one.mean_norm.fitted)}`,
      `Strength of the common direction. Chance alone changes it by ${number(one.mean_noise)}.`,
    ],
    [
      "Variance lost, live and fit",
      `${percent(one.outside.live)}, ${percent(one.outside.fitted)}`,
      "Share of the variance in directions that the chain removes.",
    ],
    ["Unusual lengths", percent(one.odd_norms), "Vectors shorter or longer than almost all rows of the fit."],
    one.clipped === null
      ? null
      : ["Clipped", percent(one.clipped, 2), "Values outside the range of the codes, which represent them badly."],
  ].filter((tile) => tile !== null);
  return h(
    "div",
    {},
    h(
      "p",
      {},
      one.stale
        ? badge("stale", "bad")
        : one.rows < SURE_ROWS
          ? badge("too few rows to say")
          : badge("not stale", "good"),
      ` ${count(one.rows)} rows of ${count(one.requests)} requests, since ${moment(one.since)}, `,
      one.encoder ? `embedded by ${one.encoder}.` : "as vectors that callers sent.",
    ),
    h(
      "dl",
      { class: "figures" },
      tiles.map(([name, value, says]) =>
        h("div", {}, h("dt", {}, name), h("dd", { class: "value" }, value), h("dd", { class: "hint" }, says)),
      ),
    ),
    h(
      "div",
      { class: "charts" },
      chart({
        id: `drift-${index}`,
        title: "Live rows by their rank among held-out rows",
        says: "Rows like those of the fit fill each tenth with 10 %. Out-of-domain rows gather on the right.",
        series: [
          { name: "live rows", kind: "bars", points: one.tenths.map((share, tenth) => [10 * tenth + 5, share]) },
          { name: "rows of the fit", points: one.tenths.map((_, tenth) => [10 * tenth + 5, 0.1]) },
        ],
        x: { title: "rank in %", show: (value) => number(value, 0), from: 0, to: 100 },
        y: {
          title: "share of the live rows",
          show: (value) => percent(value, 0),
          from: 0,
          to: Math.max(0.2, ...one.tenths),
        },
      }),
    ),
  );
}
