// All indexes.

import { get } from "./api.js";
import { chainLink } from "./chains.js";
import { badge, empty, h, scroller, table } from "./dom.js";
import { bytes, count } from "./format.js";

const EXAMPLE =
  'curl -X PUT HOST/indexes/NAME -H \'authorization: Bearer KEY\' -d \'{"chain": "compact", "text_field": "text"}\'';

/** Create a link to the page of an index. */
function indexLink(name) {
  return h("a", { href: `#/indexes/${encodeURIComponent(name)}` }, name);
}

/** Return the bytes that an index takes on disk; null in Milvus, which does not say. */
export function bytesOnDisk({ bytes: parts }) {
  return parts ? parts.record + parts.rows + parts.graph : null;
}

/** Create the badge of an index's state. */
export function stateOf({ state }) {
  return badge(state, state === "ready" ? "good" : "warn");
}

/** The page of all indexes. */
export const indexesView = {
  title: () => "Indexes",
  every: 5000,
  load: (_args, options) => get("indexes", options),
  draw(indexes) {
    if (indexes.length === 0) {
      return empty(
        h("p", {}, "There are no indexes yet. An index is created and filled through the API, with an admin key:"),
        scroller("Command", h("pre", {}, EXAMPLE)),
      );
    }
    const rows = indexes.map((one) => [
      indexLink(one.name),
      stateOf(one),
      { number: count(one.count) },
      one.chain ? chainLink(one.chain) : "",
      { number: count(one.dimensions) },
      { number: bytesOnDisk(one) === null ? "in Milvus" : bytes(bytesOnDisk(one)) },
      one.notes?.length ? one.notes.join(" ") : "",
    ]);
    return [
      h(
        "p",
        {},
        "An index stores vectors of documents and searches them. Open one to search it and to see its documents.",
      ),
      table("Indexes", ["index", "state", "documents", "chain", "dimensions", "on disk", "notes"], rows, {
        hideCaption: true,
        stack: true,
      }),
    ];
  },
};
