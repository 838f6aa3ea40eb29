// One index: searching it, its documents, and its settings.

import { get, post } from "./api.js";
import { chainLink } from "./chains.js";
import { facts, fill, h, labelled, scroller, section, table, warningList } from "./dom.js";
import { bytes, count, duration, number } from "./format.js";
import { parsedJson, row } from "./forms.js";
import { bytesOnDisk, stateOf } from "./indexes.js";
import { InputError, sentenceOf } from "./notices.js";

const LISTED = 10;
const TEXT_FIELDS = ["text", "content", "body", "title"];
const FILTER = '{"lang": "en", "year": {"gte": 2000}}';

/** The page of one index. */
export const indexView = {
  title: ([name]) => `Index ${name}`,
  link: "indexes",
  every: 0,
  async load([name], options) {
    const path = `indexes/${encodeURIComponent(name)}`;
    const [index, listed] = await Promise.all([get(path, options), loadItems(path, options)]);
    return { index, listed };
  },
  draw({ index, listed }) {
    const found = h("div", { id: "search-results", "aria-live": "polite" });
    const shown = h("div", { id: "documents" }, firstItems(index, listed));
    return [
      section("Search", searchForm(index, found), found),
      section("Documents", lookupForm(index, listed, shown), shown),
      settings(index),
    ];
  },
};

/** Load the first documents; an index that stores no originals cannot list them, and says so. */
async function loadItems(path, options) {
  try {
    return await get(`${path}/items?limit=${LISTED}`, options);
  } catch (error) {
    if (error.status === 409) {
      return { items: [], problem: error.message };
    }
    throw error;
  }
}

function searchForm(index, place) {
  const isText = index.encoder !== null;
  const query = isText
    ? h("textarea", { id: "search-query", rows: "2", required: true })
    : h("input", { id: "search-query", required: true, autocomplete: "off" });
  const k = h("input", { id: "search-k", type: "number", min: "1", max: "100", step: "1", value: "10", required: true });
  const rescore = h("input", { id: "search-rescore", type: "number", min: "1", max: "100", step: "any", placeholder: "off" });
  const filter = h("input", { id: "search-filter", autocomplete: "off", spellcheck: "false", placeholder: FILTER });
  if (index.originals === "none") {
    rescore.disabled = true;
  } else {
    rescore.value = "4";
  }
  const start = h("button", { type: "submit", class: "main", id: "search-submit" }, "Search");
  const submit = async (event) => {
    event.preventDefault();
    await search(index, { query: query.value.trim(), k: Number(k.value), rescore: rescore.value, filter: filter.value.trim() }, place);
  };
  return h(
    "form",
    { id: "search-form", onsubmit: submit },
    isText
      ? labelled("Text to search for", query)
      : labelled("Id of a document whose neighbours to find", query, "This index has no encoder, so a text cannot be searched for."),
    row(
      labelled("Number of results", k),
      labelled(
        "Rescoring factor",
        rescore,
        index.originals === "none"
          ? "This index stores no original vectors, so it cannot rescore."
          : "This many times more candidates are ranked again by the original vectors. Empty: no rescoring.",
      ),
      labelled("Filter on metadata, as JSON", filter, "Empty: all documents."),
    ),
    h("p", { class: "buttons" }, start),
  );
}

async function search(index, { query, k, rescore, filter }, place) {
  const path = `indexes/${encodeURIComponent(index.name)}`;
  try {
    if (query === "") {
      throw new InputError("Search: enter what to search for.");
    }
    const what = index.encoder === null ? { vectors: [await vectorOf(path, query)] } : { texts: [query] };
    const options = {
      rescore: rescore === "" ? null : Number(rescore),
      filter: filter === "" ? null : parsedJson(filter, "Filter"),
    };
    const start = performance.now();
    const answer = await post(`${path}/search`, { ...what, k, ...options });
    const seconds = (performance.now() - start) / 1000;
    fill(place, results(index, answer.results[0], options, seconds));
  } catch (error) {
    fill(place, h("p", { class: "notice bad", role: "alert" }, sentenceOf(error)));
  }
}

async function vectorOf(path, id) {
  const { items } = await post(`${path}/get`, { ids: [id], vectors: true });
  if (!items[0]?.vector) {
    throw new InputError(`There is no document with the id ${id}, or its original vector is not stored.`);
  }
  return items[0].vector;
}

function results(index, items, { rescore, filter }, seconds) {
  const how = [filter ? "with the filter" : null, rescore ? "after rescoring" : "without rescoring"].filter(Boolean).join(", ");
  if (items.length === 0) {
    return h("p", {}, `No document was found ${how}.`);
  }
  const score = index.metric === "l2" ? "distance" : "score";
  return [
    h("p", {}, `${count(items.length)} found ${how}, in ${duration(seconds)}.`),
    table(
      "Results",
      ["document", score, ...documentHead(index, items)],
      items.map((item) => [item.id, { number: number(item.score) }, ...documentCells(index, items, item)]),
      { hideCaption: true, stack: true },
    ),
  ];
}

/** The field of the metadata that has the text; null if there is none. */
function textField(index, items) {
  const candidates = index.text_field ? [index.text_field] : TEXT_FIELDS;
  return candidates.find((field) => items.some((item) => typeof item?.metadata?.[field] === "string")) ?? null;
}

function documentHead(index, items) {
  return textField(index, items) === null ? ["metadata"] : ["text", "other metadata"];
}

function documentCells(index, items, { metadata }) {
  const field = textField(index, items);
  const { [field]: text, ...others } = metadata ?? {};
  const rest = Object.entries(others).map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`);
  const cell = rest.length ? h("span", { class: "hint" }, rest.join(", ")) : "";
  return field === null ? [cell] : [h("div", { class: "excerpt" }, text ?? ""), cell];
}

function lookupForm(index, listed, place) {
  const ids = h("input", { id: "lookup-ids", autocomplete: "off", spellcheck: "false", required: true });
  const button = h("button", { type: "submit", id: "lookup-submit" }, "Show");
  const first = h("button", { type: "button", id: "lookup-first", onclick: () => fill(place, firstItems(index, listed)) }, "Show the first ones");
  const submit = async (event) => {
    event.preventDefault();
    const wanted = [...new Set(ids.value.split(",").map((id) => id.trim()).filter((id) => id !== ""))];
    try {
      const { items } = await post(`indexes/${encodeURIComponent(index.name)}/get`, { ids: wanted });
      const missing = wanted.filter((_, position) => items[position] === null);
      fill(
        place,
        missing.length ? h("p", { class: "notice bad" }, `There is no document with the id ${missing.join(" or ")}.`) : null,
        documentTable(index, items.filter((item) => item !== null), "Documents with these ids"),
      );
    } catch (error) {
      fill(place, h("p", { class: "notice bad", role: "alert" }, sentenceOf(error)));
    }
  };
  return h(
    "form",
    { id: "lookup-form", class: "inline", onsubmit: submit },
    labelled("Ids of documents, separated by commas", ids),
    h("p", { class: "buttons" }, button, first),
  );
}

function firstItems(index, { items, problem }) {
  if (problem) {
    return h("p", {}, problem);
  }
  if (items.length === 0) {
    return h("p", {}, "This index has no documents yet. Add some with POST ", h("code", {}, `/indexes/${index.name}/upsert`), ".");
  }
  const all = items.length === index.count ? "All documents" : `The first ${count(items.length)} of ${count(index.count)} documents`;
  return documentTable(index, items, all);
}

function documentTable(index, items, caption) {
  return items.length === 0
    ? null
    : table(
        caption,
        ["document", ...documentHead(index, items)],
        items.map((item) => [item.id, ...documentCells(index, items, item)]),
        { stack: true },
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
      ["Original vectors", `${count(one.width)} dimensions, ${one.originals === "none" ? "not stored" : `stored as ${one.originals}`}`],
      ["Graph", one.in_graph === undefined ? null : `M ${one.m}, ef_construction ${one.ef_construction}, with ${count(one.in_graph)} vectors`],
      ["On disk", disk === null ? "in Milvus" : bytes(disk)],
      ["Deleted, space not yet reclaimed", one.deleted ? count(one.deleted) : null],
      ["Age of the snapshot", age === undefined || age === null ? null : duration(age)],
      ["Moving to", one.moving_to ? scroller("Moving to", h("pre", {}, JSON.stringify(one.moving_to, null, 1))) : null],
      ["Space", h("code", {}, one.space_id)],
    ]),
    h("p", { class: "hint" }, "Vectors can be compared only within one space. An index keeps the version of its chain until it is reindexed."),
  );
}
