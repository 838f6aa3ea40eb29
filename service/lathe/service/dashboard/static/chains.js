// All chains, and what changes which version of one is live.

import { get, post } from "./api.js";
import { valueAt } from "./certificate.js";
import { badge, empty, h, table } from "./dom.js";
import { bytes, number, percent, steps } from "./format.js";
import { attempt, confirmed } from "./notices.js";
import { bytesPlots } from "./plots.js";

/** The address of a chain's page; `ref` is `name` or `name@version`. */
export function chainLink(ref) {
  return h("a", { href: `#/chains/${encodeURIComponent(ref).replace("%40", "@")}` }, ref);
}

/** A chain's widths: what it takes and what it gives. */
export function widths(chain) {
  const taken = chain.input_dimensions ?? "any";
  return `${taken} → ${chain.output_dimensions ?? taken}${chain.nested ? ", or less" : ""}`;
}

/** A version's state as a word; of the version shown also what drift found. */
export function stateBadges(chain, version) {
  return [
    version.version === chain.live ? badge("live", "good") : null,
    version.state === "ready" ? null : badge(version.state, "bad"),
    version.version === chain.version && chain.stale ? badge("stale", "bad") : null,
  ];
}

/** Ask, then make a version live; where it is below its gates, ask whether nevertheless. */
export async function promote(page, name, version, live) {
  const wanted = await confirmed({
    title: `Make ${name}@${version} live?`,
    text:
      `Whoever asks for ${name} gets vectors of ${name}@${version} from then on` +
      `${live ? `, which do not compare with those of ${name}@${live}` : ""}.`,
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
      (await confirmed({ title: "Below its gates", text: error.message, yes: "Promote nevertheless" }));
    if (!forced) {
      throw error;
    }
    await post(path, { version, force: true });
  }
}

/** Ask, then make the version live again that was before. */
export async function rollBack(page, name, live) {
  const wanted = await confirmed({
    title: `Roll ${name} back?`,
    text: `The version that was live before ${name}@${live} becomes live again.`,
    yes: "Roll back",
  });
  if (wanted) {
    await attempt(() => post(`chains/${encodeURIComponent(name)}/rollback`), `${name} was rolled back.`);
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
      return empty(h("p", {}, "There are no chains yet. "), h("a", { class: "button", href: "#/fit" }, "Fit one"));
    }
    const rows = chains.map((chain) => [
      chainLink(chain.name),
      [chain.live ? `@${chain.live} ` : "none ", stateBadges(chain, chain)],
      { number: String(chain.versions.length) },
      steps(chain.steps),
      widths(chain),
      { number: number(chain.certificate && valueAt(chain.certificate, "local_spearman")) },
      { number: percent(chain.certificate && valueAt(chain.certificate, "recall_at_10_rescored_4x")) },
      { number: bytes(chain.certificate && valueAt(chain.certificate, "bytes_per_vector.after")) },
    ]);
    return [
      h(
        "p",
        {},
        "A chain takes an encoder's vectors to better or smaller ones. ",
        "Its figures were measured on rows it was not fitted on.",
      ),
      table(
        "Chains, by their live version",
        ["chain", "live", "versions", "steps", "dimensions", "local Spearman", "recall@10, rescored", "a vector"],
        rows,
        { hideCaption: true, stack: true },
      ),
      h("div", { class: "charts" }, bytesPlots(chains)),
      h(
        "p",
        { class: "buttons" },
        h("a", { class: "button", href: "#/fit" }, "Fit a chain"),
        h("a", { class: "button", href: "#/compare" }, "Compare two"),
      ),
    ];
  },
};
