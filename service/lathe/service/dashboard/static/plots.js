// The charts of chains: what their certificates measured.

import { chart } from "./chart.js";
import { h, table } from "./dom.js";
import { count, number, percent } from "./format.js";

const BYTES = { title: "bytes per vector", show: count, log: 2 };
const SHARE = { show: (value) => percent(value, 0), from: 0, to: 1 };
const MEASURES = [
  ["local Spearman", "local_spearman"],
  ["recall@10", "recall_at_10"],
  ["recall@10, rescored", "recall_at_10_rescored_4x"],
];

/**
 * Chart the spectra of some chains' vectors, or of one chain's before and after.
 * @param {Array<{name: string, spectrum: Array<[number, number]>}>} list ranks with their shares of the variance.
 */
export function spectrumChart(list) {
  return chart({
    id: "spectrum",
    title: "Spectrum",
    says:
      "Share of the variance of the held-out vectors that lies in each direction. " +
      "A flat line means that all directions are used evenly.",
    series: list.map(({ name, spectrum }) => ({
      name,
      points: spectrum.filter(([, share]) => share > 1e-6), // smaller shares are rounding errors
    })),
    x: { title: "direction, by its rank", show: count, log: 10 },
    y: { title: "share of the variance", show: showShare, log: 10 },
  });
}

function showShare(share) {
  return share >= 0.01 ? percent(share, 0) : `${Number((100 * share).toPrecision(1))} %`;
}

/** Chart the spectra before and after a chain, or the one that the fit stored; null if it stored none. */
export function ownSpectrum({ certificate, reference }) {
  const { before, after } = certificate.diagnostics ?? {};
  if (before?.spectrum && after?.spectrum) {
    return spectrumChart([
      { name: "before", spectrum: before.spectrum },
      { name: "after", spectrum: after.spectrum },
    ]);
  }
  const shares = reference?.spectrum;
  return shares
    ? spectrumChart([{ name: "rows of the fit", spectrum: shares.map((share, index) => [index + 1, share]) }])
    : null;
}

/** Return the sizes of a nested chain with what was measured at each, the full one last; none for other chains. */
export function qualityBySize(chain) {
  const smaller = Object.entries(chain.certificate.sizes ?? {}).map(([size, found]) => ({
    size: Number(size),
    ...found,
  }));
  return smaller.length ? [...smaller, { size: chain.output_dimensions, ...chain.certificate }] : [];
}

/** Chart quality by size; null for a chain that is not nested. */
export function sizeChart(chain) {
  const sizes = qualityBySize(chain);
  if (sizes.length === 0) {
    return null;
  }
  return chart({
    id: "sizes",
    title: "Quality by number of dimensions",
    says: "This chain is nested: its vectors can be cut to any smaller size, and this is what each size keeps.",
    series: MEASURES.map(([name, key]) => ({ name, kind: "marked", points: sizes.map((one) => [one.size, one[key]]) })),
    x: { title: "dimensions", show: count, from: 0 },
    y: SHARE,
  });
}

/** Chart bytes of a vector against recall: for each encoder with two sizes or more, plain and rescored side by side. */
export function bytesCharts(chains) {
  const encoderOf = (chain) => chain.encoder?.name ?? "vectors without an encoder";
  const measured = chains.filter((chain) => chain.certificate);
  return [...new Set(measured.map(encoderOf))].flatMap((encoder, index) => {
    const own = measured.filter((chain) => encoderOf(chain) === encoder);
    const sizes = own.map((chain) => ({ name: chain.name, sizes: sizesInBytes(chain.certificate) }));
    if (sizes.flatMap((one) => one.sizes).length < 2) {
      return [];
    }
    const draw = (title, key, says) =>
      chart({
        id: `bytes-${key}-${index}`,
        title: `${title}, ${encoder}`,
        says,
        series: sizes.map((one) => ({
          name: one.name,
          kind: "marked",
          points: one.sizes.map((at) => [at.bytes, at[key]]),
        })),
        x: BYTES,
        y: SHARE,
      });
    return [
      draw(
        "Recall@10 by size",
        "recall_at_10",
        "How many of the ten nearest neighbours among the encoder's own vectors the chain's vectors find alone.",
      ),
      draw(
        "Recall@10 after rescoring, by size",
        "recall_at_10_rescored_4x",
        "The same, if the 40 nearest are ranked again by the encoder's own vectors.",
      ),
    ];
  });
}

/** Return the sizes of a chain in bytes with their measures: its own, and the smaller ones if it is nested. */
function sizesInBytes(certificate) {
  const smaller = Object.entries(certificate.sizes ?? {}).map(([size, found]) => ({
    ...found,
    bytes: 4 * Number(size),
  }));
  const sizes = [...smaller, { ...certificate, bytes: certificate.bytes_per_vector?.after }];
  return sizes.filter((one) => Number.isFinite(one.bytes) && Number.isFinite(one.recall_at_10));
}

/** Chart how true the probabilities of an index are, and the share of queries that it answers at a precision. */
export function calibrationCharts({ bins, answered }) {
  const at = (part) => Object.entries(answered).map(([precision, own]) => [Number(precision), own[part]]);
  return [
    chart({
      id: "reliability",
      title: "Reliability",
      says: "Share of right first hits by their probability. On the diagonal, probabilities are true.",
      series: [
        { name: "judged queries", kind: "marked", points: bins.map(([mean, right]) => [mean, right]) },
        {
          name: "diagonal",
          points: [
            [0, 0],
            [1, 1],
          ],
        },
      ],
      x: { ...SHARE, title: "probability" },
      y: SHARE,
    }),
    chart({
      id: "answered",
      title: "Share of queries answered",
      says: "Share of queries that a minimum probability answers at a precision, with its 95 % interval.",
      series: [
        { name: "answered", kind: "marked", points: at(0) },
        { name: "at least", points: at(1) },
        { name: "at most", points: at(2) },
      ],
      x: { title: "precision", show: SHARE.show },
      y: SHARE,
    }),
  ];
}

/** Chart the recall of an index's last searches for stored documents, the mean of fifty at each point. */
export function recallChart(history) {
  return chart({
    id: "recall",
    title: "Recall@10",
    says: "Share of the ten nearest documents that searches found, the latest searches on the right.",
    series: [{ name: "recall", kind: "marked", points: history.map((value, index) => [50 * (index + 1), value]) }],
    x: { title: "searches", show: count },
    y: SHARE,
  });
}

/** The numbers behind the charts, folded in. */
export function numbersOf(chain) {
  const sizes = qualityBySize(chain);
  const { before, after } = chain.certificate.diagnostics ?? {};
  const later = new Map(after?.spectrum ?? []);
  const spectrum = (before?.spectrum ?? []).map(([rank, share]) => [
    String(rank),
    { number: percent(share, 2) },
    { number: percent(later.get(rank), 2) },
  ]);
  const qualities = sizes.map((one) => [
    String(one.size),
    { number: number(one.local_spearman) },
    { number: percent(one.recall_at_10) },
    { number: percent(one.recall_at_10_rescored_4x) },
  ]);
  const parts = [
    qualities.length ? table("Quality by size", ["dimensions", ...MEASURES.map(([name]) => name)], qualities) : null,
    spectrum.length ? table("Spectrum", ["direction", "before", "after"], spectrum) : null,
  ].filter((part) => part !== null);
  return parts.length ? h("details", { id: "numbers" }, h("summary", {}, "The same in numbers"), parts) : null;
}
