// A certificate in pictures.

import { barChart, lineChart, scatterChart } from "./charts.js";
import { h, table } from "./dom.js";
import { bytes, number, percent } from "./format.js";

const SHARE = { title: "share of the variance", show: (value) => percentTick(value), log: true };
const RANK = { title: "direction, by its rank", show: (value) => String(Math.round(value)), log: true };

function percentTick(value) {
  return value >= 0.01 ? `${Math.round(100 * value)} %` : `${Number((100 * value).toPrecision(1))} %`;
}

/**
 * The spectra of some chains' vectors, or of one chain's before and after.
 * @param {Array<{name: string, spectrum: Array<[number, number]>}>} list ranks with their shares.
 */
export function spectrumPlot(list) {
  const series = list.map(({ name, spectrum }) => ({
    name,
    points: spectrum.filter(([, share]) => share > 1e-6), // beyond the rank there is rounding and nothing else
  }));
  return lineChart({
    title: "Spectrum",
    says: "How the variance of held-out vectors is spread over directions; a flat line is an even use of all.",
    series,
    x: RANK,
    y: SHARE,
    marks: true,
  });
}

/** The spectra of raw vectors and of the chain's, or what the fit kept of them; null where it kept none. */
export function ownSpectrum({ certificate, reference }) {
  const { before, after } = certificate.diagnostics ?? {};
  if (!before?.spectrum || !after?.spectrum) {
    const shares = reference?.spectrum;
    return shares
      ? spectrumPlot([{ name: "fitted rows", spectrum: shares.map((share, index) => [index + 1, share]) }])
      : null;
  }
  return spectrumPlot([
    { name: "before", spectrum: before.spectrum },
    { name: "after", spectrum: after.spectrum },
  ]);
}

/** The sizes of a nested chain with their quality, the full one last; an empty list for a chain of one size. */
export function qualityBySize(chain) {
  const smaller = Object.entries(chain.certificate.sizes ?? {}).map(([size, found]) => ({
    size: Number(size),
    ...found,
  }));
  return smaller.length ? [...smaller, { size: chain.output_dimensions, ...chain.certificate }] : [];
}

/** Quality by size; null for a chain that is not nested. */
export function dimensionCurve(chain) {
  const sizes = qualityBySize(chain);
  if (sizes.length === 0) {
    return null;
  }
  const line = (name, key) => ({ name, points: sizes.map((one) => [one.size, one[key]]) });
  return lineChart({
    title: "Quality by size",
    says: "The chain is nested: any size up to its own can be asked for, and this is what each keeps.",
    series: [
      line("local Spearman", "local_spearman"),
      line("recall@10", "recall_at_10"),
      line("recall@10, rescored", "recall_at_10_rescored_4x"),
    ],
    x: { title: "dimensions", show: String, ticks: sizes.map((one) => one.size), from: 0 },
    y: { title: "", show: (value) => value.toFixed(1), from: 0, to: 1 },
    marks: true,
  });
}

/** Bytes of a vector against recall, a picture for each encoder with two sizes or more to compare. */
export function bytesPlots(chains) {
  const encoderOf = (chain) => chain.encoder?.name ?? "vectors without an encoder";
  const measured = chains.filter((chain) => chain.certificate);
  return [...new Set(measured.map(encoderOf))].map((encoder) => {
    const own = measured.filter((chain) => encoderOf(chain) === encoder);
    return bytesPlot(encoder, own.flatMap(sizesInBytes));
  });
}

/** The sizes of a chain as `{name, bytes, …measures}`: its own, and where it is nested the smaller ones. */
function sizesInBytes({ name, certificate }) {
  const smaller = Object.entries(certificate.sizes ?? {}).map(([size, found]) => ({
    ...found,
    name: `${name}, ${size}`,
    bytes: 4 * Number(size),
  }));
  return [...smaller, { ...certificate, name, bytes: certificate.bytes_per_vector?.after }];
}

function bytesPlot(encoder, sizes) {
  const known = sizes.filter((one) => Number.isFinite(one.bytes) && Number.isFinite(one.recall_at_10));
  if (known.length < 2) {
    return null;
  }
  const points = (key) => known.map((one) => [one.bytes, one[key], one.name]);
  return scatterChart({
    title: `Bytes against recall, ${encoder}`,
    says:
      "How many of the ten nearest neighbours among the raw vectors each chain finds, alone and rescored, " +
      "and what a vector takes. Up and to the left is better.",
    series: [
      { name: "recall@10", points: points("recall_at_10") },
      { name: "recall@10, rescored", points: points("recall_at_10_rescored_4x") },
    ],
    x: { title: "bytes of a vector", show: bytes, log: true, ticks: ticksOfBytes(known.map((one) => one.bytes)) },
    y: { title: "", show: (value) => percent(value, 0), from: 0, to: 1 },
  });
}

/** Every other power of two from the smallest to the largest size. */
function ticksOfBytes(sizes) {
  const ticks = [];
  for (let tick = 2 ** Math.ceil(Math.log2(Math.min(...sizes))); tick <= Math.max(...sizes); tick *= 4) {
    ticks.push(tick);
  }
  return ticks;
}

/** ‖μ‖ before and after, beside what chance alone gives. */
export function meanNormBars(certificate) {
  const chance = certificate.diagnostics?.after?.noise_floor ?? null;
  const { before, after } = certificate.mean_norm;
  return barChart({
    title: "Length of the mean, ‖μ‖",
    says: "What is common to all vectors and tells none from another; less is better, down to chance.",
    bars: [
      { name: "before", value: before, series: 1 },
      { name: "after", value: after, series: 0 },
    ],
    to: Math.max(before, after, chance ?? 0),
    show: number,
    line: chance === null ? null : { value: chance, name: `chance ${number(chance)}` },
  });
}

/** Recall on held-out on out-of-domain text; null where there was none to measure on. */
export function outOfDomainBars(certificate) {
  const corpora = Object.entries(certificate.out_of_domain ?? {});
  if (corpora.length === 0) {
    return null;
  }
  const bar = (name, measured, series) => ({ name, value: measured.recall_at_10, series });
  return barChart({
    title: "Recall@10 on out-of-domain text",
    says: "On text the chain was not fitted on; far below its own, the chain serves that text badly.",
    bars: [bar("its own, held out", certificate, 0), ...corpora.map(([name, one]) => bar(name, one, 1))],
    to: 1,
    show: percent,
  });
}

/** The figures behind the curves, folded in. */
export function numbersOf(chain) {
  const sizes = qualityBySize(chain);
  const { before, after } = chain.certificate.diagnostics ?? {};
  const later = new Map(after?.spectrum ?? []);
  const parts = [];
  if (before?.spectrum) {
    parts.push(
      table(
        "Spectrum",
        ["direction", "before", "after"],
        before.spectrum.map(([rank, share]) => [
          String(rank),
          { number: percent(share, 2) },
          { number: percent(later.get(rank), 2) },
        ]),
      ),
    );
  }
  if (sizes.length) {
    parts.push(
      table(
        "Quality by size",
        ["dimensions", "local Spearman", "recall@10", "rescored"],
        sizes.map((one) => [
          String(one.size),
          { number: number(one.local_spearman) },
          { number: percent(one.recall_at_10) },
          { number: percent(one.recall_at_10_rescored_4x) },
        ]),
      ),
    );
  }
  return parts.length ? h("details", { id: "numbers" }, h("summary", {}, "The same in numbers"), parts) : null;
}
