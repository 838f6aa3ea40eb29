// The form that decides whether another encoder is worth it.

import { empty, h, labelled, select } from "./dom.js";
import { dataFields, group, jobChoice, jobForm, loadServer, pairFields, pairsOf, row, sourceOf } from "./forms.js";

/** The page of the form that compares two encoders. */
export const migrateView = {
  title: () => "New job: compare encoders",
  every: 0,
  link: "fit",
  load: loadServer,
  draw: ({ encoders, most }) => [
    jobChoice("#/migrate"),
    encoders.length > 1
      ? migrateForm(encoders, most)
      : empty("This server has one encoder. Add the new one with lathe encoders add, and start it."),
  ],
};

function migrateForm(encoders, most) {
  const names = encoders.map((one) => [one.name, one.name]);
  const fields = {
    rows: dataFields("migrate", "Rows", {
      accept: ".txt,.jsonl",
      fileHint: "The texts that are stored now: .txt with one per line, or .jsonl with a field text.",
      pathHint: "In the server's data folder.",
      placeholder: "documents.jsonl",
    }),
    pairs: pairFields("migrate", "A .jsonl file with the fields query and document. Without one, nothing is decided."),
    encoder: select("migrate-encoder", names),
    to: select("migrate-to", [...names].reverse()),
    bytes: h("input", { id: "migrate-bytes", type: "number", min: "1", step: "1", placeholder: "floats" }),
    price: h("input", { id: "migrate-price", type: "number", min: "0", step: "any", placeholder: "unknown" }),
  };
  const groups = [
    h(
      "p",
      {},
      "The job measures on a sample of the rows what the new encoder gains, and what it costs to encode all of them " +
        "again. It recommends the cheapest choice that no other beats by more than chance. It changes nothing.",
    ),
    group("Rows", fields.rows.element),
    group("Judged searches", fields.pairs.element),
    group(
      "Encoders",
      row(labelled("Present encoder", fields.encoder), labelled("New encoder", fields.to)),
      row(
        labelled("Bytes per stored vector", fields.bytes, "Empty: vectors are floats."),
        labelled("Price of a million tokens", fields.price, "Of the new encoder, if it is an API."),
      ),
    ),
  ];
  return jobForm("migrate", "migrate", groups, () => bodyOf(fields, most), "Compare");
}

/** Build the request of `POST /migrate`. Throws `InputError` if something is missing. */
async function bodyOf(fields, most) {
  const source = await sourceOf(fields.rows, most);
  return {
    source,
    pairs: (await pairsOf(fields.pairs, most)) || null,
    encoder: fields.encoder.value,
    to: fields.to.value,
    bytes: fields.bytes.value === "" ? null : Number(fields.bytes.value),
    price: fields.price.value === "" ? null : Number(fields.price.value),
  };
}
