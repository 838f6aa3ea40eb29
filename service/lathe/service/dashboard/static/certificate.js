// The measures of a certificate, and what each means in a sentence.

import { fill, h, labelled, select, table } from "./dom.js";
import { count, exactBytes, number, percent } from "./format.js";

/**
 * Measures in the order in which they are shown.
 *   key     path in the certificate, as in gates
 *   before  path of the value before the chain
 *   better  1 if more is better, -1 if less is
 *   says    what the measure means
 */
export const FIGURES = [
  {
    key: "local_spearman",
    name: "Local Spearman",
    better: 1,
    show: number,
    says: "How well the neighbours of a held-out vector keep their order. 1: exactly; 0: by chance.",
  },
  {
    key: "recall_at_10",
    name: "Recall@10",
    better: 1,
    show: percent,
    says: "Share of the ten nearest neighbours among the encoder's vectors that the chain's vectors find alone.",
  },
  {
    key: "recall_at_10_rescored_4x",
    name: "Recall@10, rescored",
    better: 1,
    show: percent,
    says: "The same, if the 40 nearest are ranked again by the encoder's vectors, as a search with rescoring does.",
  },
  {
    key: "positional_stress",
    name: "Positional stress",
    better: -1,
    show: (value) => number(value, 4),
    says: "Mean squared change of the distance between two vectors. 0: no change.",
  },
  {
    key: "mean_norm.after",
    before: "mean_norm.before",
    name: "Length of the mean vector",
    better: -1,
    show: number,
    says: "Before and after the chain. Near 0, the texts have no direction in common.",
  },
  {
    key: "isoscore.after",
    before: "isoscore.before",
    name: "IsoScore",
    better: 1,
    show: number,
    says: "How evenly the variance is spread over the dimensions. 1: evenly; 0: all in one.",
  },
  {
    key: "bytes_per_vector.after",
    before: "bytes_per_vector.before",
    name: "Size of a vector",
    better: -1,
    show: exactBytes,
    says: "Bytes of a vector as it is sent and stored, before and after the chain.",
  },
  {
    key: "alignment.cosine",
    name: "Cosine to the targets",
    better: 1,
    show: number,
    optional: true,
    says: "How close an output comes to its target vector. 1: same direction.",
  },
  {
    key: "alignment.recall_at_10",
    name: "Recall@10 among the targets",
    better: 1,
    show: percent,
    optional: true,
    says: "Share of the ten targets nearest to a target that its output finds.",
  },
];

/** Return the value at a path with dots, or null. */
export function valueAt(certificate, key) {
  return key.split(".").reduce((inside, part) => inside?.[part], certificate) ?? null;
}

/** Create a card for each measure of a certificate, with its sentence. */
export function figureCards(certificate) {
  const cards = FIGURES.filter((one) => !one.optional || valueAt(certificate, one.key) !== null).map((one) => {
    const before = one.before ? valueAt(certificate, one.before) : null;
    return h(
      "div",
      { class: "figure-card" },
      h("dt", {}, one.name),
      h(
        "dd",
        { class: "value" },
        before === null ? null : h("span", { class: "was" }, one.show(before), " → "),
        one.show(valueAt(certificate, one.key)),
      ),
      h("dd", { class: "hint" }, one.says),
    );
  });
  return h("dl", { class: "figures" }, cards);
}

/** Say on how many rows a chain was fitted and measured. */
export function rowsSentence(certificate) {
  const others = count(certificate.n_heldout);
  return `Fitted on ${count(certificate.n_fit)} rows, measured on ${others} other rows of the same source.`;
}

/** Create the table of quality on held-out text and on out-of-domain text, which the chain was not fitted on. */
export function outOfDomainTable(certificate) {
  const corpora = Object.entries(certificate.out_of_domain ?? {});
  const row = (name, measured, n) => [
    name,
    { number: number(measured.local_spearman) },
    { number: percent(measured.recall_at_10) },
    { number: percent(measured.recall_at_10_rescored_4x) },
    { number: count(n) },
  ];
  return table(
    "Quality on held-out and on out-of-domain text",
    ["text", "local Spearman", "recall@10", "recall@10, rescored", "rows"],
    [
      row("held out from the fit", certificate, certificate.n_heldout),
      ...corpora.map(([name, one]) => row(`${name} (out of domain)`, one, one.n)),
    ],
    { stack: true },
  );
}

/**
 * Create fields for gates: what the new version must reach.
 * @returns {{element: Element, read: function(): object}} `read` returns the gates that were filled in.
 */
export function gateFields() {
  const rows = h("div", { class: "gates" });
  const choices = FIGURES.filter((one) => !one.optional);
  const add = () => {
    const index = rows.childElementCount;
    const value = h("input", { id: `gate-value-${index}`, type: "number", step: "any", class: "short" });
    const limit = h("span", {}, "");
    const key = select(
      `gate-key-${index}`,
      choices.map((one) => [one.key, one.name]),
      null,
      () => say(),
    );
    const say = () => fill(limit, choices.find((one) => one.key === key.value).better > 0 ? "at least" : "at most");
    say();
    rows.append(h("div", { class: "gate" }, labelled("Measure", key), limit, labelled("Limit", value)));
    key.focus();
  };
  const button = h("button", { type: "button", id: "gate-add", onclick: add }, "Add a gate");
  const read = () =>
    Object.fromEntries(
      [...rows.children]
        .map((row) => [row.querySelector("select").value, row.querySelector("input").value])
        .filter(([, value]) => value !== "")
        .map(([key, value]) => [key, Number(value)]),
    );
  return { element: h("div", {}, rows, button), read };
}
