// A candidate version that runs beside the live one on some of its traffic.

import { getIfThere, put, remove } from "./api.js";
import { badge, h, section, table } from "./dom.js";
import { count, duration, moment, number, percent } from "./format.js";
import { attempt, confirmed } from "./notices.js";

const SHARE = 0.1;
const VERDICTS = { passed: "good", failed: "bad", "not yet": "warn" };

/** What a chain's shadow reports; null where it ended meanwhile. */
export function loadShadow(name, options) {
  return getIfThere(`chains/${encodeURIComponent(name)}/shadow`, options);
}

/** Ask, then try a version beside the live one. */
export async function startShadow(page, name, version, live) {
  const wanted = await confirmed({
    title: `Try ${name}@${version} beside ${name}@${live}?`,
    text:
      `Both versions are given ${percent(SHARE, 0)} of the live traffic and their neighbours compared. ` +
      `Answers stay those of ${name}@${live}; another shadow of ${name} ends.`,
    yes: "Start the shadow",
  });
  if (wanted) {
    const path = `chains/${encodeURIComponent(name)}/shadow`;
    await attempt(() => put(path, { version, share: SHARE }), `${name}@${version} runs beside ${name}@${live}.`);
    await page.refresh();
  }
}

/** Ask, then end a shadow. */
async function endShadow(page, { chain, candidate }) {
  const wanted = await confirmed({
    title: `End the shadow of ${chain}@${candidate}?`,
    text: "Its rows and figures are forgotten.",
    yes: "End it",
  });
  if (wanted) {
    await attempt(() => remove(`chains/${encodeURIComponent(chain)}/shadow`), "The shadow has ended.");
    await page.refresh();
  }
}

/** The report as a section; nothing where there is none. */
export function drawShadow(found, page) {
  if (found === null) {
    return null;
  }
  const recall = found.raw_recall_at_k ?? {};
  const rows = [
    [`recall@${found.k} of the raw vectors' neighbours`, between(recall.live), between(recall.candidate)],
    [
      "time for 1,000 rows",
      { number: milliseconds(found.latency_ms?.live) },
      { number: milliseconds(found.latency_ms?.candidate) },
    ],
    ["rows with NaN or infinity", ...bothProblems(found, "not_finite")],
    ["rows of a wrong length", ...bothProblems(found, "off_norm")],
    ["rows it failed on", ...bothProblems(found, "failed")],
  ];
  const errors = Object.values(found.problems ?? {})
    .map((one) => one.error)
    .filter((error) => error);
  return section(
    `Shadow of ${found.chain}@${found.candidate}`,
    h(
      "p",
      {},
      badge(found.state ?? "running", found.ended ? "warn" : "good"),
      " ",
      verdict(found),
      ` Since ${moment(found.started_at)} the candidate was tried on ${percent(found.share, 0)} of the live traffic: ` +
        `${count(found.seen)} rows passed by, ${count(found.rows)} different ones are held.`,
    ),
    found.ended ? h("p", {}, `It ended: ${found.ended}.`) : null,
    h(
      "p",
      {},
      `Of each row's ${found.k} nearest among them, both versions agree on `,
      h("strong", {}, between(found.agreement_at_k).number),
      ".",
    ),
    table("Live and candidate on the same rows", ["", `live @${found.live}`, `candidate @${found.candidate}`], rows, {
      stack: true,
    }),
    errors.length ? h("p", { class: "notice bad" }, errors.join("; ")) : null,
    h(
      "p",
      { class: "buttons" },
      h(
        "button",
        { type: "button", id: "shadow-end", onclick: () => endShadow(page, found) },
        found.ended ? "Forget the shadow" : "End the shadow",
      ),
    ),
  );
}

function verdict(found) {
  if (!found.verdict || found.verdict === "no gates") {
    return null;
  }
  const failed = found.failed_gates.length ? `: ${found.failed_gates.join(", ")}` : "";
  return [badge(`gates: ${found.verdict}${failed}`, VERDICTS[found.verdict]), " "];
}

function between(interval) {
  return {
    number: interval
      ? `${percent(interval.value)} [${number(100 * interval.low, 1)}, ${number(100 * interval.high, 1)}]`
      : "not known yet",
  };
}

function milliseconds(value) {
  return duration(value === undefined || value === null ? null : value / 1000);
}

function bothProblems(found, key) {
  return ["live", "candidate"].map((side) => ({ number: count(found.problems?.[side]?.[key]) }));
}
