// All chains, and the actions that change which version of a chain is live.

import { get, post } from "./api.js";
import { valueAt } from "./certificate.js";
import { badge, empty, h, table } from "./dom.js";
import { exactBytes, number, percent, steps } from "./format.js";
import { attempt, confirmed } from "./notices.js";
import { bytesCharts } from "./plots.js";

/** Create a link to a chain's page; `ref` is `name` or `name@version`. */
export function chainLink(ref) {
  return h("a", { href: `#/chains/${encodeURIComponent(ref).replace("%40", "@")}` }, ref);
}

/** Format the dimensions that a chain takes and returns. */
export function widths(chain) {
  const taken = chain.input_dimensions ?? "any";
  return `${taken} → ${chain.output_dimensions ?? taken}${chain.nested ? ", or less" : ""}`;
}

/** Create the badges of a version's state. Drift is known of the shown version only. */
export function stateBadges(chain, version) {
  return [
    version.version === chain.live ? badge("live", "good") : null,
    version.state === "ready" ? null : badge(version.state, "bad"),
    version.version === chain.version && chain.stale ? badge("stale", "bad") : null,
  ];
}

/** Make a version live after confirmation. If it fails its gates, ask again. */
export async function promote(page, name, version, live) {
  const wanted = await confirmed({
    title: `Make ${name}@${version} live?`,
    text:
      `Requests for ${name} then get vectors of ${name}@${version}` +
      `${live ? `. They cannot be compared with vectors of ${name}@${live}` : ""}.`,
    yes: "Promote",
  });
  if (wanted) {
    await attempt(() => promoteOrForce(name, version), `${name}@${version} is live.`);
    await page.refresh();
  }
}

async function promoteOrForce(name, version) {
  const path = `chains/${encodeURIComponent(name)}/promote`;
  try {
    await post(path, { version });
  } catch (error) {
    const forced =
      error.code === "gate_failed" &&
      (await confirmed({ title: "This version fails its gates", text: error.message, yes: "Promote it anyway" }));
    if (!forced) {
      throw error;
    }
    await post(path, { version, force: true });
  }
}

/** Make the version live that was live before, after confirmation. */
export async function rollBack(page, name, live) {
  const wanted = await confirmed({
    title: `Roll ${name} back?`,
    text: `The version that was live before ${name}@${live} becomes live again.`,
    yes: "Roll back",
  });
  if (wanted) {
    await attempt(() => post(`chains/${encodeURIComponent(name)}/rollback`), `${name} is rolled back.`);
    await page.refresh();
  }
}

/** The page of all chains. */
export const chainsView = {
  title: () => "Chains",
  every: 5000,
  load: (_args, options) => get("chains", options),
  draw(chains) {
    if (chains.length === 0) {
      return empty(h("p", {}, "There are no chains yet."), h("a", { class: "button", href: "#/fit" }, "Fit a chain"));
    }
    const rows = chains.map((chain) => [
      chainLink(chain.name),
      [chain.live ? `${chain.live} ` : "none ", chain.stale ? badge("stale", "bad") : null],
      { number: String(chain.versions.length) },
      steps(chain.steps),
      widths(chain),
      { number: number(chain.certificate && valueAt(chain.certificate, "local_spearman")) },
      { number: percent(chain.certificate && valueAt(chain.certificate, "recall_at_10")) },
      { number: percent(chain.certificate && valueAt(chain.certificate, "recall_at_10_rescored_4x")) },
      { number: exactBytes(chain.certificate && valueAt(chain.certificate, "bytes_per_vector.after")) },
    ]);
    return [
      h(
        "p",
        {},
        "A chain turns an encoder's vectors into better or smaller ones. ",
        "Its quality was measured on rows that it was not fitted on.",
      ),
      table(
        "Chains, by their live versions",
        [
          "chain",
          "live version",
          "versions",
          "steps",
          "dimensions",
          "local Spearman",
          "recall@10",
          "recall@10, rescored",
          "bytes per vector",
        ],
        rows,
        { hideCaption: true, stack: true },
      ),
      h("div", { class: "charts" }, bytesCharts(chains)),
      h(
        "p",
        { class: "buttons" },
        h("a", { class: "button", href: "#/fit" }, "Fit a chain"),
        h("a", { class: "button", href: "#/compare" }, "Compare two versions"),
      ),
    ];
  },
};

/**
 * Return the bytes that a chain saves against the encoder's own floats.
 * @returns {{before: number, after: number, saved: number}|null} bytes of a vector; null if they are not known.
 */
export function bytesSaved({ certificate, encoder, input_dimensions: taken }) {
  const after = certificate && valueAt(certificate, "bytes_per_vector.after");
  const before =
    4 * (encoder?.dimensions ?? taken ?? 0) || (certificate && valueAt(certificate, "bytes_per_vector.before"));
  return after && before ? { before, after, saved: before - after } : null;
}
