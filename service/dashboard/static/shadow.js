// A candidate version that runs beside the live one on some of its traffic.

import { getIfThere } from "./api.js";
import { badge, h, section, table } from "./dom.js";
import { count, duration, moment, number, percent } from "./format.js";
import { lastSeries } from "./live.js";

const VERDICTS = { passed: "good", failed: "bad", "not yet": "warn" };

const goneAt = new Map();

/** What a chain's shadow reports; null where it has none. Only chains are asked for whose shadow tried rows since. */
export async function loadShadow(name, options) {
  const tried = lastSeries("lathe_shadow_rows_total", { chain: name })[0]?.value;
  if (tried === undefined || tried === goneAt.get(name)) {
    return null;
  }
  const found = await getIfThere(`chains/${encodeURIComponent(name)}/shadow`, options);
  if (found === null) {
    goneAt.set(name, tried);
  }
  return found;
}

/** The report as a section; nothing where there is none. */
export function drawShadow(found) {
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
