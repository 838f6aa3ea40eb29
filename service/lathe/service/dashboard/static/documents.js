// The documents of an index: the first ones, and those with certain ids.

import { get, post } from "./api.js";
import { fill, h, labelled, table } from "./dom.js";
import { count } from "./format.js";
import { sentenceOf } from "./notices.js";

const LISTED = 10;
const TEXT_FIELDS = ["text", "content", "body", "title"];

/** Load the first documents, `{items}`. */
export async function loadItems(path, options) {
  return get(`${path}/items?limit=${LISTED}`, options);
}

/** Create the form that shows documents by their ids in `place`. */
export function lookupForm(index, listed, place) {
  const ids = h("input", { id: "lookup-ids", autocomplete: "off", spellcheck: "false", required: true });
  const button = h("button", { type: "submit", id: "lookup-submit" }, "Show");
  const first = h(
    "button",
    { type: "button", id: "lookup-first", onclick: () => fill(place, firstItems(index, listed)) },
    "Show the first ones",
  );
  const submit = async (event) => {
    event.preventDefault();
    const wanted = [
      ...new Set(
        ids.value
          .split(",")
          .map((id) => id.trim())
          .filter((id) => id !== ""),
      ),
    ];
    try {
      const { items } = await post(`indexes/${encodeURIComponent(index.name)}/get`, { ids: wanted });
      const missing = wanted.filter((_, position) => items[position] === null);
      fill(
        place,
        missing.length
          ? h("p", { class: "notice bad" }, `There is no document with the id ${missing.join(" or ")}.`)
          : null,
        documentTable(
          index,
          items.filter((item) => item !== null),
          "Documents with these ids",
        ),
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

/** Create the table of the first documents, or say why there is none. */
export function firstItems(index, { items }) {
  if (items.length === 0) {
    return h(
      "p",
      {},
      "This index has no documents yet. Add some with POST ",
      h("code", {}, `/indexes/${index.name}/upsert`),
      ".",
    );
  }
  const all =
    items.length === index.count
      ? "All documents"
      : `The first ${count(items.length)} of ${count(index.count)} documents`;
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

/** The field of the metadata that has the text; null if there is none. */
function textField(index, items) {
  const candidates = index.text_field ? [index.text_field] : TEXT_FIELDS;
  return candidates.find((field) => items.some((item) => typeof item?.metadata?.[field] === "string")) ?? null;
}

/** Return the headings of the columns that show the documents of an index. */
export function documentHead(index, items) {
  return textField(index, items) === null ? ["metadata"] : ["text", "other metadata"];
}

/** Return the cells of these columns for a document. */
export function documentCells(index, items, { metadata }) {
  const field = textField(index, items);
  const { [field]: text, ...others } = metadata ?? {};
  const rest = Object.entries(others).map(
    ([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`,
  );
  const cell = rest.length ? h("span", { class: "hint" }, rest.join(", ")) : "";
  return field === null ? [cell] : [h("div", { class: "excerpt" }, text ?? ""), cell];
}
