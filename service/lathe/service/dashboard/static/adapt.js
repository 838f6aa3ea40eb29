// The form that adapts vectors to judged searches.

import { empty, h, labelled, select } from "./dom.js";
import { dataFields, group, jobChoice, jobForm, loadServer, pairFields, pairsOf, row, sourceOf } from "./forms.js";

/** The page of the form that adapts to judged searches. */
export const adaptView = {
  title: () => "New job: adapt to searches",
  every: 0,
  link: "fit",
  load: loadServer,
  draw: ({ encoders, most }) => [
    jobChoice("#/adapt"),
    encoders.length ? adaptForm(encoders, most) : empty("This server has no encoder."),
  ],
};

function adaptForm(encoders, most) {
  const fields = {
    documents: dataFields("adapt", "Documents", {
      accept: ".txt,.jsonl",
      fileHint: "The texts that are searched: .txt with one per line, or .jsonl with a field text.",
      pathHint: "In the server's data folder.",
      placeholder: "documents.jsonl",
    }),
    pairs: pairFields("adapt", "A .jsonl file with the fields query and document: a relevant document for each query."),
    encoder: select(
      "adapt-encoder",
      encoders.map((one) => [one.name, one.name]),
    ),
    bytes: h("input", { id: "adapt-bytes", type: "number", min: "1", step: "1", placeholder: "floats" }),
    train: select("adapt-train", [
      ["no", "No: stored vectors stay valid"],
      ["yes", "Yes: all documents must be encoded again"],
    ]),
    minutes: h("input", { id: "adapt-minutes", type: "number", min: "1", step: "any", placeholder: "no limit" }),
    name: h("input", { id: "adapt-name", autocomplete: "off", placeholder: "publish nothing" }),
  };
  const groups = [
    h(
      "p",
      {},
      "The job tries several changes, from the cheapest to the most expensive. It recommends the cheapest one that " +
        "no other beats by more than chance, measured on queries that it did not learn from.",
    ),
    group("Documents", fields.documents.element),
    group("Judged searches", fields.pairs.element),
    group(
      "What may change",
      row(
        labelled("Encoder", fields.encoder, "The encoder that the documents are searched with."),
        labelled("Bytes per stored vector", fields.bytes, "Empty: vectors stay floats."),
      ),
      row(
        labelled("Try to train the encoder", fields.train, "Takes minutes to hours."),
        labelled("Time limit in minutes", fields.minutes, "Approximate, for the whole job."),
      ),
      row(labelled("Publish the recommendation as", fields.name, "Name of a chain or encoder, or empty.")),
    ),
  ];
  return jobForm("adapt", "adapt", groups, () => bodyOf(fields, most), "Start the adaptation");
}

/** Build the request of `POST /adapt`. Throws `InputError` if something is missing. */
async function bodyOf(fields, most) {
  const source = await sourceOf(fields.documents, most);
  fields.pairs.require();
  return {
    source,
    pairs: await pairsOf(fields.pairs, most),
    encoder: fields.encoder.value,
    bytes: fields.bytes.value === "" ? null : Number(fields.bytes.value),
    train: fields.train.value === "yes",
    budget: fields.minutes.value === "" ? null : 60 * Number(fields.minutes.value),
    name: fields.name.value.trim() || null,
  };
}
