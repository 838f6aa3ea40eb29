// One chain: its versions, and the certificate of one of them in figures and pictures.

import { get } from "./api.js";
import { figureCards, outOfDomainTable, rowsSentence, valueAt, warningList } from "./certificate.js";
import { chainLink, promote, rollBack, stateBadges, widths } from "./chains.js";
import { h, section, table } from "./dom.js";
import { drawDrift, loadDrift } from "./drift.js";
import { count, number, percent, steps } from "./format.js";
import { dimensionCurve, outOfDomainBars, meanNormBars, numbersOf, ownSpectrum } from "./plots.js";

/** The page of a chain: `#/chains/NAME` shows its live version, `#/chains/NAME@2` that one. */
export const chainView = {
  title: ([ref]) => ref,
  every: 5000,
  async load([ref], options) {
    const chain = await get(`chains/${encodeURIComponent(ref).replace("%40", "@")}`, options);
    const ready = chain.state === "ready";
    const drift = ready ? await loadDrift(`${chain.name}@${chain.version}`, options) : null;
    return { chain, drift };
  },
  draw({ chain, drift }, page) {
    const ready = chain.state === "ready" && chain.certificate;
    return [
      versions(chain, page),
      ready
        ? certificate(chain)
        : section("Certificate", h("p", {}, chain.error ?? "This version carries no certificate.")),
      ready ? drawDrift(drift) : null,
      ready ? provenance(chain) : null,
    ];
  },
};

function versions(chain, page) {
  const { name, live } = chain;
  const rows = chain.versions
    .toReversed()
    .map((one) => [
      [chainLink(`${name}@${one.version}`), " ", stateBadges(chain, one)],
      steps(one.steps),
      widths(one),
      { number: count(one.certificate?.n_fit) },
      { number: number(one.certificate && valueAt(one.certificate, "local_spearman")) },
      { number: percent(one.certificate && valueAt(one.certificate, "recall_at_10")) },
      actions(page, chain, one),
    ]);
  const back = h("button", { type: "button", id: "rollback", onclick: () => rollBack(page, name, live) }, "Roll back");
  return section(
    "Versions",
    h(
      "p",
      {},
      live
        ? `Live is ${name}@${live}: that is what the name ${name} alone means.${forcedPast(chain)}`
        : "No version is live: promote one to serve it.",
    ),
    table("Versions", ["version", "steps", "dimensions", "rows", "local Spearman", "recall@10", "to do"], rows, {
      hideCaption: true,
      stack: true,
    }),
    h(
      "p",
      { class: "buttons" },
      chain.earlier.length ? back : null,
      h("a", { class: "button", href: `#/try/${name}@${chain.version}` }, "Try it"),
    ),
  );
}

function forcedPast({ forced }) {
  return forced.length ? ` It was promoted past its gates: ${forced.join(", ")}.` : "";
}

function actions(page, { name, live }, one) {
  if (one.version === live) {
    return "";
  }
  const make = h(
    "button",
    { type: "button", id: `promote-${one.version}`, onclick: () => promote(page, name, one.version, live) },
    `Promote @${one.version}`,
  );
  const compare = h(
    "a",
    { class: "button", href: `#/compare/${name}@${live}/${name}@${one.version}` },
    "Compare with live",
  );
  const ready = one.state === "ready";
  return h(
    "span",
    { class: "buttons" },
    ready ? make : null,
    live ? compare : null,
  );
}

function certificate(chain) {
  const found = chain.certificate;
  return [
    section(
      `Certificate of ${chain.name}@${chain.version}`,
      h("p", {}, rowsSentence(found)),
      figureCards(found),
      warningList(found),
    ),
    section(
      "In pictures",
      h("div", { class: "charts" }, dimensionCurve(chain), ownSpectrum(chain), meanNormBars(found), outOfDomainBars(found)),
      numbersOf(chain),
      Object.keys(found.out_of_domain ?? {}).length ? outOfDomainTable(found) : null,
    ),
  ];
}

/** A step without the parameters that were left to it. */
function given(step) {
  return Object.fromEntries(Object.entries(step).filter(([, value]) => value !== null));
}

function provenance(chain) {
  const from = chain.provenance ?? {};
  const facts = [
    [
      "Encoder",
      chain.encoder ? `${chain.encoder.name} (${chain.encoder.fingerprint})` : "none: fitted on vectors of nobody's",
    ],
    ["Steps", h("code", {}, JSON.stringify(chain.steps.map(given)))],
    [
      "Source",
      `${from.source ?? "unknown"}, ${count(from.rows)} rows, digest ${(from.rows_digest ?? "").slice(0, 16)}…`,
    ],
    ["Command", h("code", {}, from.command ?? "none: asked for over HTTP")],
    [
      "Libraries",
      Object.entries(from.libraries ?? {})
        .map(([name, version]) => `${name} ${version}`)
        .join(", "),
    ],
    ["Tensors", h("code", {}, `sha256 ${(chain.tensors_sha256 ?? "").slice(0, 16)}…`)],
  ];
  return section(
    "Where it comes from",
    h(
      "dl",
      { class: "facts" },
      facts.map(([name, fact]) => [h("dt", {}, name), h("dd", {}, fact)]),
    ),
  );
}
