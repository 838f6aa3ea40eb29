// One index: searching it, its documents, and its settings.

import { get } from "./api.js";
import { chainLink } from "./chains.js";
import { firstItems, loadItems, lookupForm } from "./documents.js";
import { facts, h, scroller, section, warningList } from "./dom.js";
import { bytes, count, duration, percent } from "./format.js";
import { jobForm } from "./forms.js";
import { bytesOnDisk, stateOf } from "./indexes.js";
import { calibrationCharts, recallChart } from "./plots.js";
import { checkupContent } from "./results.js";
import { searchForm } from "./search.js";

/** The page of one index. */
export const indexView = {
  title: ([name]) => `Index ${name}`,
  link: "indexes",
  every: 0,
  async load([name], options) {
    const path = `indexes/${encodeURIComponent(name)}`;
    const index = await get(path, options);
    return { index, listed: await loadItems(path, options) };
  },
  draw({ index, listed }) {
    const found = h("div", { id: "search-results", "aria-live": "polite" });
    const shown = h("div", { id: "documents" }, firstItems(index, listed));
    return [
      section("Search", searchForm(index, found), found),
      section("Documents", lookupForm(index, listed, shown), shown),
      index.calibration ? calibration(index.calibration) : null,
      index.recall ? recall(index.recall) : null,
      index.recall === undefined ? null : checkup(index),
      settings(index),
    ];
  },
};

function calibration({ sentence, stale, kind, queries, rows, figures }) {
  const references = kind === "queries" ? `${count(queries)} queries` : "the documents themselves";
  return section(
    "Probability of hits",
    h("p", {}, sentence),
    stale ? warningList(["Many documents are newer than the calibration: calibrate the index again."]) : null,
    h("p", { class: "hint" }, `Calibrated on ${count(rows)} documents with ${references}.`),
    figures ? h("div", { class: "charts" }, calibrationCharts(figures)) : null,
  );
}

function recall({ queries, losses, rows, history }) {
  const parts = Object.entries(losses).map(([cause, [mean, low, high]]) => {
    return `the ${cause} loses ${percent(mean)} (${percent(low)} to ${percent(high)})`;
  });
  return section(
    "Recall while it serves",
    h("p", {}, `Of the ten nearest of ${count(queries)} stored documents, ${parts.join(", and ")}.`),
    h(
      "p",
      {},
      `${percent(rows.copied[0])} of these documents have the vector of another one, and the graph does not find ` +
        `${percent(rows.unreachable[0])}.`,
    ),
    history.length > 1 ? h("div", { class: "charts" }, recallChart(history)) : null,
    h("p", { class: "hint" }, "A larger ef, or reindexing, brings back what the graph loses; rescoring what the chain loses."),
  );
}

/** The last checkup, and the button that starts one; indexes of Milvus have neither. */
function checkup({ name, checkup: last }) {
  const path = `indexes/${encodeURIComponent(name)}/checkup`;
  return section(
    "Checkup",
    last
      ? checkupContent(last)
      : h("p", {}, "It says what is wrong with stored vectors, what takes recall from searches, and what to do."),
    jobForm("checkup", path, [], () => ({}), last ? "Check again" : "Check this index"),
  );
}

function settings(one) {
  const age = one.snapshot_age_seconds;
  const disk = bytesOnDisk(one);
  return section(
    "Settings and state",
    h("p", {}, stateOf(one), ` ${count(one.count)} documents.`),
    warningList(one.notes),
    facts([
      ["Chain", chainLink(one.chain)],
      ["Encoder", one.encoder ?? "none: it takes vectors only"],
      ["Vectors searched", `${count(one.dimensions)} dimensions, compared by ${one.metric}`],
      [
        "Original vectors",
        `${count(one.width)} dimensions, ${one.originals === "none" ? "not stored" : `stored as ${one.originals}`}`,
      ],
      [
        "Graph",
        one.in_graph === undefined
          ? null
          : `M ${one.m}, ef_construction ${one.ef_construction}, with ${count(one.in_graph)} vectors`,
      ],
      ["On disk", disk === null ? "in Milvus" : bytes(disk)],
      ["Deleted, space not yet reclaimed", one.deleted ? count(one.deleted) : null],
      ["Age of the snapshot", age === undefined || age === null ? null : duration(age)],
      ["Moving to", one.moving_to ? scroller("Moving to", h("pre", {}, JSON.stringify(one.moving_to, null, 1))) : null],
      ["Space", h("code", {}, one.space_id)],
    ]),
    h(
      "p",
      { class: "hint" },
      "Vectors can be compared only within one space. An index keeps the version of its chain until it is reindexed.",
    ),
  );
}
