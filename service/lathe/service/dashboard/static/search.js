// The form that searches an index, and its results.

import { post } from "./api.js";
import { documentCells, documentHead } from "./documents.js";
import { fill, h, labelled, table } from "./dom.js";
import { count, duration, number, percent } from "./format.js";
import { parsedJson, row } from "./forms.js";
import { InputError, sentenceOf } from "./notices.js";

const FILTER = '{"lang": "en", "year": {"gte": 2000}}';

/** Create the form that searches an index; its results are shown in `place`. */
export function searchForm(index, place) {
  const isText = index.encoder !== null;
  const query = isText
    ? h("textarea", { id: "search-query", rows: "2", required: true, onkeydown: submitOnEnter })
    : h("input", { id: "search-query", required: true, autocomplete: "off" });
  const k = h("input", {
    id: "search-k",
    type: "number",
    min: "1",
    max: "100",
    step: "1",
    value: "10",
    required: true,
  });
  const rescore = h("input", {
    id: "search-rescore",
    type: "number",
    min: "1",
    max: "100",
    step: "any",
    placeholder: "off",
  });
  const filter = h("input", { id: "search-filter", autocomplete: "off", spellcheck: "false", placeholder: FILTER });
  if (index.originals === "none") {
    rescore.disabled = true;
  } else {
    rescore.value = "4";
  }
  const start = h("button", { type: "submit", class: "main", id: "search-submit" }, "Search");
  const submit = async (event) => {
    event.preventDefault();
    await search(
      index,
      { query: query.value.trim(), k: Number(k.value), rescore: rescore.value, filter: filter.value.trim() },
      place,
    );
  };
  return h(
    "form",
    { id: "search-form", onsubmit: submit },
    isText
      ? labelled("Text to search for", query)
      : labelled(
          "Id of a document whose neighbours to find",
          query,
          "This index has no encoder, so a text cannot be searched for.",
        ),
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

/** Search by Enter, as search fields do; Shift and Enter begin a new line. */
function submitOnEnter(event) {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    event.target.form.requestSubmit();
  }
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
  const how = [filter ? "with the filter" : null, rescore ? "after rescoring" : "without rescoring"]
    .filter(Boolean)
    .join(", ");
  if (items.length === 0) {
    return h("p", {}, `No document was found ${how}.`);
  }
  const score = index.metric === "l2" ? "distance" : "score";
  const isCalibrated = items[0].probability !== undefined;
  return [
    h("p", {}, `${count(items.length)} found ${how}, in ${duration(seconds)}.`),
    table(
      "Results",
      ["document", score, ...(isCalibrated ? ["probability"] : []), ...documentHead(index, items)],
      items.map((item) => [
        item.id,
        { number: number(item.score) },
        ...(isCalibrated ? [probabilityBar(item.probability)] : []),
        ...documentCells(index, items, item),
      ]),
      { hideCaption: true, stack: true },
    ),
  ];
}

/** A bar as long as the probability that a hit is right; nothing if it is not known. */
function probabilityBar(probability) {
  if (probability === null) {
    return "";
  }
  const shown = percent(probability, 0);
  return h("span", {}, h("meter", { min: "0", max: "1", value: String(probability), title: shown }), ` ${shown}`);
}
