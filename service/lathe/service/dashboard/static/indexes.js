// Indexes, each with the space its vectors are in.

import { get } from "./api.js";
import { chainLink } from "./chains.js";
import { badge, empty, h, scroller, section, table } from "./dom.js";
import { bytes, count, duration } from "./format.js";

const EXAMPLE = "curl -X PUT HOST/indexes/NAME -H 'authorization: Bearer KEY' -d '{\"chain\": \"compact\"}'";

/** The page of all indexes. */
export const indexesView = {
  title: () => "Indexes",
  every: 5000,
  load: (_args, options) => get("indexes", options),
  draw(indexes) {
    if (indexes.length === 0) {
      return empty(
        h("p", {}, "There are no indexes yet. An admin makes one, and anybody fills and searches it:"),
        scroller("Command", h("pre", {}, EXAMPLE)),
      );
    }
    return [
      table(
        "Indexes",
        ["index", "items", "chain", "dimensions", "metric", "state", "on disk", "space"],
        indexes.map((one) => [
          one.name,
          { number: count(one.count) },
          chainLink(one.chain),
          { number: String(one.dimensions) },
          one.metric,
          badge(one.state, one.state === "ready" ? "good" : "warn"),
          { number: one.bytes ? bytes(one.bytes.record + one.bytes.rows + one.bytes.graph) : "in Milvus" },
          h("code", {}, one.space_id),
        ]),
        { hideCaption: true, stack: true },
      ),
      h(
        "p",
        { class: "hint" },
        "Vectors compare only within one space. ",
        "An index keeps to the version of the chain it was made with, until it is made anew.",
      ),
      indexes.map(details),
    ];
  },
};

function details(one) {
  const facts = [
    ["Encoder", one.encoder ?? "none: it takes vectors only"],
    ["Vectors as given", `${one.width} wide, ${one.originals === "none" ? "not kept" : `kept as ${one.originals}`}`],
    ["Graph", `M ${one.m}, ef_construction ${one.ef_construction}, ${count(one.in_graph)} items in it`],
    ["Deleted, not yet compacted", one.deleted === undefined ? null : count(one.deleted)],
    [
      "Snapshot",
      one.snapshot_age_seconds === undefined || one.snapshot_age_seconds === null
        ? null
        : `${duration(one.snapshot_age_seconds)} old`,
    ],
    ["Moving to", one.moving_to ? JSON.stringify(one.moving_to) : null],
  ].filter(([, fact]) => fact !== null);
  return section(
    one.name,
    h(
      "dl",
      { class: "facts" },
      facts.map(([name, fact]) => [h("dt", {}, name), h("dd", {}, fact)]),
    ),
    one.notes.length
      ? h(
          "ul",
          { class: "warnings" },
          one.notes.map((note) => h("li", {}, note)),
        )
      : null,
  );
}
