// One chain: its versions, and the certificate of one of them in numbers and charts.

import { get } from "./api.js";
import { figureCards, outOfDomainTable, rowsSentence, valueAt } from "./certificate.js";
import { chainLink, promote, rollBack, stateBadges, widths } from "./chains.js";
import { facts, h, section, table, warningList } from "./dom.js";
import { drawDrift, loadDrift } from "./drift.js";
import { count, exactBytes, number, percent, steps } from "./format.js";
import { numbersOf, ownSpectrum, sizeChart } from "./plots.js";

/** The page of a chain: `#/chains/NAME` shows its live version, `#/chains/NAME@2` version 2. */
export const chainView = {
  title: ([ref]) => `Chain ${ref}`,
  link: "chains",
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
        : section("Certificate", h("p", {}, chain.error ?? "This version has no certificate.")),
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
      { number: number(one.certificate && valueAt(one.certificate, "local_spearman")) },
      { number: percent(one.certificate && valueAt(one.certificate, "recall_at_10")) },
      { number: percent(one.certificate && valueAt(one.certificate, "recall_at_10_rescored_4x")) },
      { number: exactBytes(one.certificate && valueAt(one.certificate, "bytes_per_vector.after")) },
      actions(page, chain, one),
    ]);
  const back = h("button", { type: "button", id: "rollback", onclick: () => rollBack(page, name, live) }, "Roll back");
  return section(
    "Versions",
    h(
      "p",
      {},
      live
        ? `Version ${live} is live: requests for ${name} get the vectors of ${name}@${live}.${forcedPast(chain)}`
        : "No version is live. Promote one to serve it.",
    ),
    table(
      "Versions",
      [
        "version",
        "steps",
        "dimensions",
        "local Spearman",
        "recall@10",
        "recall@10, rescored",
        "bytes per vector",
        "actions",
      ],
      rows,
      {
        hideCaption: true,
        stack: true,
      },
    ),
    h(
      "p",
      { class: "buttons" },
      chain.earlier.length ? back : null,
      h("a", { class: "button", href: `#/try/${name}@${chain.version}` }, "Try it"),
    ),
  );
}

function forcedPast({ forced }) {
  return forced.length ? ` It was promoted although it fails these gates: ${forced.join(", ")}.` : "";
}

function actions(page, { name, live }, one) {
  if (one.version === live) {
    return "";
  }
  const make = h(
    "button",
    {
      type: "button",
      id: `promote-${one.version}`,
      "aria-label": `Promote ${name}@${one.version}`,
      onclick: () => promote(page, name, one.version, live),
    },
    "Promote",
  );
  const compare = h(
    "a",
    {
      class: "button",
      href: `#/compare/${name}@${live}/${name}@${one.version}`,
      "aria-label": `Compare ${name}@${one.version} with the live version`,
    },
    "Compare",
  );
  const ready = one.state === "ready";
  return h("span", { class: "buttons" }, ready ? make : null, live ? compare : null);
}

function certificate(chain) {
  const found = chain.certificate;
  return [
    section(
      `Certificate of ${chain.name}@${chain.version}`,
      h("p", {}, rowsSentence(found)),
      figureCards(found),
      warningList(found.warnings),
      Object.keys(found.out_of_domain ?? {}).length ? outOfDomainTable(found) : null,
    ),
    section("Charts", h("div", { class: "charts" }, sizeChart(chain), ownSpectrum(chain)), numbersOf(chain)),
  ];
}

/** Return a step without the parameters that were not set. */
function given(step) {
  return Object.fromEntries(Object.entries(step).filter(([, value]) => value !== null));
}

function provenance(chain) {
  const from = chain.provenance ?? {};
  const known = [
    [
      "Encoder",
      chain.encoder
        ? `${chain.encoder.name} (${chain.encoder.fingerprint})`
        : "none: fitted on vectors without an encoder",
    ],
    ["Steps", h("code", {}, JSON.stringify(chain.steps.map(given)))],
    [
      "Source",
      `${from.source ?? "unknown"}, ${count(from.rows)} rows, digest ${(from.rows_digest ?? "").slice(0, 16)}…`,
    ],
    ["Command", h("code", {}, from.command ?? "none: requested over HTTP")],
    [
      "Libraries",
      Object.entries(from.libraries ?? {})
        .map(([name, version]) => `${name} ${version}`)
        .join(", "),
    ],
    ["Tensors", h("code", {}, `sha256 ${(chain.tensors_sha256 ?? "").slice(0, 16)}…`)],
  ];
  return section("Provenance", facts(known));
}
