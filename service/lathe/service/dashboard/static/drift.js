// How far live traffic has moved from what a chain was fitted on.

import { ApiError, get } from "./api.js";
import { barChart } from "./charts.js";
import { badge, h, section } from "./dom.js";
import { count, moment, number, percent } from "./format.js";

const SURE_ROWS = 1000; // before which nothing is called stale

/** What the server knows of a version's drift; it may be that nothing is known, and why. */
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

/** The report as a section. */
export function drawDrift(found) {
  const empty = "No live traffic went through this version since the server started: figures come with requests.";
  return section(
    "Drift of live traffic",
    found.unknown ? h("p", {}, `Not known: ${found.unknown}.`) : null,
    found.encoders.length === 0 && !found.unknown ? h("p", {}, empty) : null,
    found.encoders.map((one) => drawEncoder(one, found.threshold)),
  );
}

function drawEncoder(one, threshold) {
  const spread = one.noise === null ? "" : ` ± ${number(one.noise, 3)}`;
  const tiles = [
    [
      "Out of domain",
      `${number(one.out_of_domain)}${spread}`,
      "The mean rank of live rows among held-out ones: .5 is as fitted, 1 is farther than all. " +
        `Surely past ${number(threshold)} it is stale.`,
    ],
    [
      "Mean, its cosine to the fitted",
      number(one.mean_cosine),
      "1: live texts have in common what the fitted ones had.",
    ],
    [
      "‖μ‖, live and fitted",
      `${number(one.mean_norm.live)}, ${number(one.mean_norm.fitted)}`,
      `How much is common to all texts; chance alone moves it by ${number(one.mean_noise)}.`,
    ],
    [
      "Left out, live and fitted",
      `${percent(one.outside.live)}, ${percent(one.outside.fitted)}`,
      "The share of what tells texts apart that lies outside what the chain keeps.",
    ],
    ["Odd lengths", percent(one.odd_norms), "Vectors shorter or longer than all but a few of the fitted ones."],
    one.clipped === null
      ? null
      : ["Clipped", percent(one.clipped, 2), "Values beyond the range of the codes, which stand for them badly."],
  ].filter((tile) => tile !== null);
  return h(
    "div",
    {},
    h(
      "p",
      {},
      one.stale ? badge("stale", "bad") : one.rows < SURE_ROWS ? badge("too few rows") : badge("not stale", "good"),
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
      barChart({
        title: "Live rows by their rank among held-out ones",
        says: "As fitted, each tenth holds 10 %; out-of-domain rows gather in the last.",
        bars: one.tenths.map((share, index) => ({ name: `${10 * index} to ${10 * index + 10} %`, value: share })),
        to: Math.max(0.2, ...one.tenths),
        show: percent,
        line: { value: 0.1, name: "as fitted" },
      }),
    ),
  );
}
