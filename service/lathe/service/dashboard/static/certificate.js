// The certificate's figures, and what each means in a sentence.

import { fill, h, labelled, select, table } from "./dom.js";
import { bytes, count, number, percent } from "./format.js";

/**
 * Figures in the order they are shown.
 *   key     where it stands in the certificate, as gates write it
 *   better  1 where more is better, -1 where less is
 *   says    what it means
 */
export const FIGURES = [
  {
    key: "local_spearman",
    name: "Local Spearman",
    better: 1,
    show: number,
    says: "How well the neighbours of a held-out vector keep their order: 1 is exactly, 0 is by chance.",
  },
  {
    key: "recall_at_10",
    name: "Recall@10",
    better: 1,
    show: percent,
    says: "How many of the ten nearest neighbours among the raw vectors are found by the chain's vectors alone.",
  },
  {
    key: "recall_at_10_rescored_4x",
    name: "Recall@10, rescored",
    better: 1,
    show: percent,
    says: "The same when forty candidates are ranked again by the raw vectors, as an index here does.",
  },
  {
    key: "positional_stress",
    name: "Positional stress",
    better: -1,
    show: (value) => number(value, 4),
    says: "By how much the distance of two vectors changes, squared, on average: 0 is not at all.",
  },
  {
    key: "mean_norm.after",
    before: "mean_norm.before",
    name: "‖μ‖",
    better: -1,
    show: number,
    says: "The length of the mean of all unit vectors: near 0, no direction is common to all texts.",
  },
  {
    key: "isoscore.after",
    before: "isoscore.before",
    name: "IsoScore",
    better: 1,
    show: number,
    says: "How evenly the variance is spread over the dimensions: 1 is over all alike, 0 is in one.",
  },
  {
    key: "bytes_per_vector.after",
    before: "bytes_per_vector.before",
    name: "Size of a vector",
    better: -1,
    show: bytes,
    says: "What a vector takes as it is sent and stored.",
  },
  {
    key: "alignment.cosine",
    name: "Cosine to the targets",
    better: 1,
    show: number,
    optional: true,
    says: "How close an output comes to the vector it should become: 1 is the same direction.",
  },
  {
    key: "alignment.recall_at_10",
    name: "Recall@10 among the targets",
    better: 1,
    show: percent,
    optional: true,
    says: "How many of the ten targets nearest to a target its output finds.",
  },
];

/** The value at a key with dots; null where there is none. */
export function valueAt(certificate, key) {
  return key.split(".").reduce((inside, part) => inside?.[part], certificate) ?? null;
}

/** The figures of a certificate as cards, each with its sentence. */
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

/** On how many rows a chain was fitted and measured. */
export function rowsSentence(certificate) {
  const others = count(certificate.n_heldout);
  return `Fitted on ${count(certificate.n_fit)} rows, measured on ${others} others of the same source.`;
}

/** What the certificate warns of; nothing where it does not. */
export function warningList(certificate) {
  const warnings = certificate.warnings ?? [];
  return warnings.length
    ? h(
        "ul",
        { class: "warnings" },
        warnings.map((one) => h("li", {}, one)),
      )
    : null;
}

/** The quality on text the chain was not fitted on, as rows of a table: corpus, then each measure. */
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
    "Held-out and out-of-domain text",
    ["text", "local Spearman", "recall@10", "rescored", "rows"],
    [
      row("its own, held out", certificate, certificate.n_heldout),
      ...corpora.map(([name, one]) => row(name, one, one.n)),
    ],
  );
}

/**
 * Fields for gates: what the new version must reach.
 * @returns {{element: Element, read: function(): object}} `read` gives the gates that were filled in.
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
