// Two versions of chains side by side. The better value of each measure is marked.

import { getIfThere, get } from "./api.js";
import { chart } from "./chart.js";
import { FIGURES, valueAt } from "./certificate.js";
import { chainLink, widths } from "./chains.js";
import { empty, h, labelled, section, select, table, warningList } from "./dom.js";
import { count, percent, steps } from "./format.js";
import { qualityBySize, spectrumChart } from "./plots.js";

/** The page of a comparison, `#/compare/NAME@1/NAME@2`. Versions that are left out are chosen. */
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
        h("p", {}, "Two versions of chains are needed for a comparison. This server has fewer."),
        h("a", { class: "button", href: "#/fit" }, "Fit a chain"),
      );
    }
    const missing = wanted.filter((_, index) => !chosen[index]?.certificate);
    return [
      choice(refs, wanted),
      missing.length
        ? h("p", { class: "notice bad" }, `There is no certificate of ${missing.join(" or ")}. Choose other versions.`)
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
    labelled("First version", select("compare-first", options, first, go)),
    labelled("Second version", select("compare-second", options, second, go)),
  );
}

function sideBySide(one, other) {
  const facts = [
    ["Steps", steps(one.steps), steps(other.steps)],
    ["Dimensions", widths(one), widths(other)],
    ["Source", one.provenance?.source ?? "unknown", other.provenance?.source ?? "unknown"],
    [
      "Rows of the fit, held out",
      ...[one, other].map(({ certificate }) => `${count(certificate.n_fit)}, ${count(certificate.n_heldout)}`),
    ],
  ].map(([name, left, right]) => [name, left, right, ""]);
  return [
    section(
      "Measures",
      sameRows(one, other),
      table(
        "Measures side by side",
        ["measure", chainLink(refOf(one)), chainLink(refOf(other)), "meaning"],
        [...figureRows(one, other), ...facts],
        { hideCaption: true, stack: true },
      ),
      [one, other].map((chain) => warningList(chain.certificate.warnings)),
    ),
    section("Charts", h("div", { class: "charts" }, curves(one, other), spectra(one, other))),
  ];
}

/** Say whether both were measured on the same rows. */
function sameRows(one, other) {
  const [left, right] = [one, other].map(({ provenance }) => provenance?.rows_digest);
  const same = left && left === right && one.certificate.seed === other.certificate.seed;
  return h(
    "p",
    { class: "hint" },
    same
      ? "Both were measured on the same held-out rows."
      : "Each was measured on rows of its own source, so part of a difference may come from the rows.",
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
      says: "The same, on out-of-domain text, which it was not fitted on.",
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

/** Return which of two values is better; -1 if they are shown alike or one was not measured. */
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
  return list.length ? spectrumChart(list) : null;
}

function curves(one, other) {
  const draw = (id, title, key) =>
    chart({
      id,
      title,
      says: "A chain of a single size is one mark.",
      series: [one, other].map((chain) => ({ name: refOf(chain), kind: "marked", points: sizesOf(chain, key) })),
      x: { title: "dimensions", show: count, from: 0 },
      y: { title: "", show: (value) => percent(value, 0), from: 0, to: 1 },
    });
  return [
    draw("plain", "Recall@10 by number of dimensions", "recall_at_10"),
    draw("rescored", "Recall@10 after rescoring, by number of dimensions", "recall_at_10_rescored_4x"),
  ];
}

function sizesOf(chain, key) {
  const sizes = qualityBySize(chain);
  const points = sizes.length
    ? sizes
    : [{ size: chain.output_dimensions ?? chain.input_dimensions, ...chain.certificate }];
  return points.map((found) => [found.size, found[key]]);
}
