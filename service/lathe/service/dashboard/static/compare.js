// Two versions of chains side by side, each figure with the better one marked.

import { getIfThere, get } from "./api.js";
import { FIGURES, valueAt, warningList } from "./certificate.js";
import { chainLink, widths } from "./chains.js";
import { empty, h, labelled, section, select, table } from "./dom.js";
import { count, steps } from "./format.js";
import { spectrumPlot, qualityBySize } from "./plots.js";
import { lineChart } from "./charts.js";

/** The page of a comparison: `#/compare/NAME@1/NAME@2`; what is left out is chosen. */
export const compareView = {
  title: () => "Compare",
  every: 0,
  async load(args, options) {
    const refs = (await get("chains", options)).flatMap((chain) =>
      chain.versions
        .filter((one) => one.certificate)
        .map((one) => ({ ref: `${chain.name}@${one.version}`, live: chain.live === one.version })),
    );
    const live = [...refs.filter((one) => one.live), ...refs].map((one) => one.ref);
    const first = args[0] || live[0];
    const second = args[1] || live.find((ref) => ref !== first) || first;
    const chosen = first ? await Promise.all([first, second].map((ref) => getIfThere(pathOf(ref), options))) : [];
    return { refs: refs.map((one) => one.ref), wanted: [first, second], chosen };
  },
  draw({ refs, wanted, chosen }) {
    if (refs.length < 2) {
      return empty(
        h("p", {}, "There is nothing to compare until two versions of chains are there."),
        h("a", { class: "button", href: "#/fit" }, "Fit a chain"),
      );
    }
    const missing = wanted.filter((_, index) => !chosen[index]?.certificate);
    return [
      choice(refs, wanted),
      missing.length
        ? h("p", { class: "notice bad" }, `There is no certificate of ${missing.join(" or ")}.`)
        : sideBySide(...chosen),
    ];
  },
};

function pathOf(ref) {
  return `chains/${encodeURIComponent(ref).replace("%40", "@")}`;
}

function refOf(chain) {
  return `${chain.name}@${chain.version}`;
}

function choice(refs, [first, second]) {
  const options = refs.map((ref) => [ref, ref]);
  const go = () => {
    const [one, other] = ["compare-first", "compare-second"].map((id) => document.getElementById(id).value);
    location.hash = `#/compare/${one}/${other}`;
  };
  return h(
    "div",
    { class: "row" },
    labelled("One", select("compare-first", options, first, go)),
    labelled("The other", select("compare-second", options, second, go)),
  );
}

function sideBySide(one, other) {
  const facts = [
    ["Steps", steps(one.steps), steps(other.steps)],
    ["Dimensions", widths(one), widths(other)],
    ["Source", one.provenance?.source ?? "unknown", other.provenance?.source ?? "unknown"],
    [
      "Rows fitted, held out",
      ...[one, other].map(({ certificate }) => `${count(certificate.n_fit)}, ${count(certificate.n_heldout)}`),
    ],
  ].map(([name, left, right]) => [name, left, right, ""]);
  return [
    section(
      "Figures",
      sameRows(one, other),
      table(
        "Figures side by side",
        ["", chainLink(refOf(one)), chainLink(refOf(other)), "what it means"],
        [...figureRows(one, other), ...facts],
        { hideCaption: true, stack: true },
      ),
      [one, other].map((chain) => warningList(chain.certificate)),
    ),
    section("In pictures", h("div", { class: "charts" }, spectra(one, other), curves(one, other))),
  ];
}

/** A caution where the figures were measured on different rows. */
function sameRows(one, other) {
  const [left, right] = [one, other].map(({ provenance }) => provenance?.rows_digest);
  const same = left && left === right && one.certificate.seed === other.certificate.seed;
  return h(
    "p",
    { class: "hint" },
    same
      ? "Both were measured on the same held-out rows."
      : "Each was measured on rows of its own source: differences in the rows show in the figures too.",
  );
}

function figureRows(one, other) {
  const shared = Object.keys(one.certificate.out_of_domain ?? {}).filter(
    (name) => name in (other.certificate.out_of_domain ?? {}),
  );
  const more = shared.flatMap((name) =>
    FIGURES.slice(0, 2).map((figure) => ({
      ...figure,
      name: `${figure.name}, on ${name}`,
      key: `out_of_domain.${name}.${figure.key}`,
      says: "The same, on text it was not fitted on.",
    })),
  );
  return [...FIGURES, ...more]
    .map((figure) => {
      const values = [one, other].map(({ certificate }) => valueAt(certificate, figure.key));
      if (figure.optional && values.every((value) => value === null)) {
        return null;
      }
      const better = betterOf(values, figure);
      const cells = values.map((value, index) => ({
        number:
          index === better
            ? [h("strong", { class: "better" }, figure.show(value)), h("span", { class: "mark" }, " better")]
            : figure.show(value),
      }));
      return [figure.name, ...cells, h("span", { class: "hint" }, figure.says)];
    })
    .filter((row) => row !== null);
}

/** Which of two values is better; -1 where they are alike as shown, or one was not measured. */
function betterOf(values, { better, show }) {
  if (values.includes(null) || show(values[0]) === show(values[1])) {
    return -1;
  }
  return (values[0] - values[1]) * better > 0 ? 0 : 1;
}

function spectra(one, other) {
  const list = [one, other]
    .map((chain) => ({ name: refOf(chain), spectrum: chain.certificate.diagnostics?.after?.spectrum }))
    .filter(({ spectrum }) => spectrum);
  return list.length ? spectrumPlot(list) : null;
}

function curves(one, other) {
  const series = [one, other].map((chain) => ({ name: refOf(chain), points: sizesOf(chain) }));
  const ticks = [...new Set(series.flatMap(({ points }) => points.map(([size]) => size)))];
  return lineChart({
    title: "Recall@10, rescored, by size",
    says: "A chain of one size is one mark.",
    series,
    x: { title: "dimensions", show: String, ticks: ticks.length > 6 ? null : ticks, from: 0 },
    y: { title: "", show: (value) => value.toFixed(1), from: 0, to: 1 },
    marks: true,
  });
}

function sizesOf(chain) {
  const sizes = qualityBySize(chain);
  const points = sizes.length
    ? sizes
    : [{ size: chain.output_dimensions ?? chain.input_dimensions, ...chain.certificate }];
  return points.map((one) => [one.size, one.recall_at_10_rescored_4x]);
}
