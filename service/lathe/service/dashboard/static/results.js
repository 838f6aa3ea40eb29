// The results of jobs: a fitted chain, a trained encoder, or the recommendation of an adaptation.

import { figureCards, rowsSentence } from "./certificate.js";
import { chainLink } from "./chains.js";
import { badge, facts, h, scroller, section, table, warningList } from "./dom.js";
import { saveButton } from "./download.js";
import { count, duration, exactBytes, number, percent } from "./format.js";

/** Changes that an adaptation tries, by name. */
const CHANGES = {
  as_is: "Leave the vectors as they are",
  debias: "Debias",
  query_adapter: "Map queries",
  fine_tuning: "Fine-tune the encoder",
  pre_finetuning: "Pre-finetune, then fine-tune the encoder",
};

/** Create the section with the result of a job that has succeeded. */
export function resultSection(job) {
  if (job.kind === "adapt" && job.result.sentence) {
    return adaptation(job.result);
  }
  if (job.kind === "checkup") {
    return section("Checkup", checkupContent(job.result));
  }
  if (job.kind === "migrate") {
    return migration(job.result);
  }
  if (job.kind === "train" && job.result.certificate) {
    return section("Result", ...trainedEncoder(job.result));
  }
  if (job.kind === "fit" && job.result.certificate) {
    return section("Result", ...fittedChain(job.result), files(job));
  }
  return section(
    "Result",
    files(job),
    scroller("The result as JSON", h("pre", {}, JSON.stringify(job.result, null, 1))),
  );
}

/** Badges by the severity of a finding. */
const SEVERITIES = { fix: "bad", note: "", fine: "good" };

/** Create the summary and the findings of a checkup of an index. */
export function checkupContent({ summary, checked, rows, findings, searches }) {
  const read = checked === rows ? `All ${count(rows)} rows were read` : `${count(checked)} of ${count(rows)} rows were read`;
  const found = findings.map(({ severity, sentence, certainty, ids, advice }) => [
    badge(severity, SEVERITIES[severity]),
    [
      sentence,
      certainty === "certain" ? null : ` (${certainty})`,
      ids.length ? h("div", { class: "hint" }, `Rows: ${ids.join(", ")}`) : null,
    ],
    advice,
  ]);
  const efforts = searches?.efforts.map(({ effort, recall, seconds }) => [
    { number: count(effort) },
    { number: percent(recall.value) },
    { number: `${number(1000 * seconds, 2)} ms` },
  ]);
  return [
    h("p", { class: "lead", id: "checkup-summary" }, summary),
    h("p", { class: "hint" }, searches ? `${read}, and ${count(searches.queries)} queries asked.` : `${read}.`),
    table("Findings", ["severity", "what was found", "what to do"], found, { hideCaption: true, stack: true }),
    efforts?.length > 1
      ? table("Recall@10 of approximate search by its effort", ["ef", "recall@10", "a query"], efforts, { stack: true })
      : null,
  ];
}

function files({ id, result }) {
  return h(
    "p",
    { class: "buttons" },
    result.vectors_url ? saveButton(`jobs/${id}/vectors`, `${id}.npy`, "Save the vectors") : null,
    result.report_url ? saveButton(`jobs/${id}/report`, `${id}.html`, "Save the report") : null,
  );
}

/** The chain that a fit made, with its certificate. */
function fittedChain(result) {
  const sizes = result.size_routes?.length
    ? ` It answers requests for ${result.size_routes.join(", ")} dimensions.`
    : "";
  return [
    h("p", {}, chainLink(result.chain), result.promoted ? " is live." : " is not live. Promote it on its page.", sizes),
    failedGates(result),
    h("p", {}, rowsSentence(result.certificate)),
    figureCards(result.certificate),
    warningList(result.certificate.warnings),
  ];
}

function failedGates({ failed_gates: failed }) {
  return failed?.length ? h("p", { class: "notice bad" }, `It fails these gates: ${failed.join(", ")}.`) : null;
}

/** The encoder that a training made, with nDCG@10 before and after. */
function trainedEncoder(result) {
  const { relevance = {}, out_of_domain: outside = {}, warnings } = result.certificate;
  const rows = [
    ...Object.entries(relevance).map(([name, one]) => [name, one]),
    ...Object.entries(outside).map(([name, one]) => [`${name} (out of domain)`, one]),
  ].map(([name, { queries, ndcg_at_10: ndcg }]) => [
    name,
    { number: count(queries) },
    { number: points(ndcg.before) },
    { number: points(ndcg.after) },
    { number: gain(ndcg) },
  ]);
  return [
    h(
      "p",
      {},
      h("strong", {}, result.encoder),
      result.promoted
        ? " is live: requests for its name get its vectors."
        : " is not live. Promote it with lathe encoders promote.",
    ),
    failedGates(result),
    rows.length
      ? table("nDCG@10 in points", ["searches", "queries", "before", "after", "gain"], rows, { stack: true })
      : null,
    warningList(warnings),
  ];
}

/** What an adaptation recommends, and all that it tried. */
function adaptation(result) {
  const { queries, encoder, chain } = result; // an encoder or chain that was published is an object
  const corpora = [...new Set(result.trials.flatMap((trial) => Object.keys(trial.out_of_domain ?? {})))];
  return section(
    "Recommendation",
    h("p", { class: "lead", id: "recommendation" }, result.sentence),
    warningList(result.notes),
    isPublished(result)
      ? null
      : h("p", {}, "Nothing was published. The same job with a name publishes the recommendation, and trains nothing again."),
    trialTable(result, corpora),
    h(
      "p",
      { class: "hint" },
      "Gains are in points of nDCG@10 with 95 % intervals, on queries that were neither learned from nor used " +
        "to choose.",
    ),
    facts([
      ["Published chain", chain?.chain ? chainLink(chain.chain) : null],
      ["Published encoder", encoder?.encoder ?? null],
      ["Encoder", typeof encoder === "string" ? encoder : null],
      ["Documents", count(result.documents)],
      [
        "Queries",
        queries
          ? [
              `${count(queries.learn)} to learn from`,
              `${count(queries.choose)} to choose by`,
              `${count(queries.report)} to report on`,
            ].join(", ")
          : null,
      ],
    ]),
  );
}

/** What a comparison of encoders recommends, and what each choice gives. */
function migration(result) {
  const judged = result.measure === "ndcg_at_10";
  const rows = result.choices.map(({ name, mean, difference: { value, low, high }, vector_bytes: bytes }) => [
    name === result.recommended ? [name, " ", h("span", { class: "badge good" }, "recommended")] : name,
    { number: number(mean, 1) },
    { number: name === "stay" ? "" : gain({ gain: value / 100, ci95: low === null ? null : (high - low) / 200 }) },
    { number: exactBytes(bytes) },
  ]);
  const measure = judged ? "nDCG@10 in points" : `% of the ten nearest by ${result.to}`;
  return section(
    "Decision",
    h("p", { class: "lead", id: "recommendation" }, result.sentence),
    warningList(result.notes),
    table("Choices, cheapest first", ["choice", measure, "against stay", "bytes per vector"], rows, { stack: true }),
  );
}

/** Return whether an adaptation published something, or recommends nothing that could be. */
function isPublished({ recommended, bytes, encoder, chain }) {
  const nothing = recommended === "as_is" && (bytes ?? null) === null;
  return nothing || chain?.chain !== undefined || encoder?.encoder !== undefined;
}

/** All changes that an adaptation tried, with gains on the queries to report on and on out-of-domain corpora. */
function trialTable(result, corpora) {
  const head = [
    "change",
    "bytes per vector",
    "gain in nDCG@10",
    ...corpora.map((name) => `gain on ${name}`),
    "takes",
    "documents encoded again",
  ];
  const rows = result.trials.map((trial) => {
    const mark = isRecommended(trial, result) ? [" ", h("span", { class: "badge good" }, "recommended")] : null;
    const name = [CHANGES[trial.change] ?? trial.change, mark];
    if (!trial.report) {
      return [
        name,
        { number: exactBytes(trial.vector_bytes) },
        h("div", { class: "prose" }, `Not tried: ${trial.problem}.`),
        ...corpora.map(() => ""),
        "",
        "",
      ];
    }
    const isBaseline = trial.change === "as_is" && trial.bytes === null;
    return [
      name,
      { number: exactBytes(trial.vector_bytes) },
      { number: gain(trial.report, isBaseline) },
      ...corpora.map((corpus) => ({ number: gain(trial.out_of_domain[corpus], isBaseline) })),
      { number: roughly(trial.fit_seconds) },
      trial.encodes_documents_again ? `yes, about ${roughly(trial.encode_seconds)}` : "no",
    ];
  });
  return table("Changes that were tried", head, rows, { stack: true });
}

/** Format a duration that was measured to a tenth of a second. */
function roughly(seconds) {
  return seconds < 1 ? "less than 1 s" : duration(seconds);
}

function isRecommended(trial, result) {
  return trial.change === result.recommended && (trial.bytes ?? null) === (result.bytes ?? null);
}

/** Format a share of 1 in points of 100. */
function points(value) {
  return number(100 * value, 1);
}

/** Format a gain with its interval; the baseline has its own value instead. */
function gain({ gain: mean, ci95, ndcg_at_10: ndcg }, isBaseline = false) {
  if (isBaseline) {
    return `${points(ndcg)} as it is`;
  }
  const text = `${mean < 0 ? "−" : "+"}${Math.abs(100 * mean).toFixed(1)}`;
  return typeof ci95 === "number" ? `${text} ± ${(100 * ci95).toFixed(1)}` : text;
}
