// The form that trains an encoder.

import { empty, h, labelled, select } from "./dom.js";
import { group, jobChoice, jobForm, loadServer, parsedJson, PROMOTIONS, promotionField, row } from "./forms.js";
import { InputError } from "./notices.js";

const METHODS = [
  ["ft", "Fine-tune on the pairs of the task itself"],
  ["reze", "Pre-finetune on many sources, regularized (REZE)"],
  ["pft", "Pre-finetune on many sources, without a regularizer"],
  ["distill", "Pre-finetune close to the encoder as it was (distillation)"],
];
const SETTINGS = '{"training": {"epochs": 1, "learning_rate": 1e-4, "batch_size": 8}}';

/** The page of the form that trains an encoder. */
export const trainView = {
  title: () => "New job: train an encoder",
  every: 0,
  link: "fit",
  load: loadServer,
  draw({ encoders }) {
    const own = encoders.filter((one) => !one.upstream);
    return [
      jobChoice("#/train"),
      own.length ? trainForm(own) : empty("This server has no encoder that can be trained."),
    ];
  },
};

function trainForm(encoders) {
  const fields = {
    name: h("input", { id: "train-name", required: true, autocomplete: "off", placeholder: "my-encoder" }),
    encoder: select(
      "train-encoder",
      encoders.map((one) => [one.name, one.name]),
    ),
    method: select("train-method", METHODS),
    paths: h("textarea", {
      id: "train-paths",
      rows: "3",
      required: true,
      spellcheck: "false",
      placeholder: "questions.jsonl\nfinance/fiqa",
    }),
    anchor: h("input", { id: "train-anchor", autocomplete: "off", value: "anchor" }),
    positive: h("input", { id: "train-positive", autocomplete: "off", value: "positive" }),
    settings: h("textarea", { id: "train-settings", rows: "4", spellcheck: "false" }, SETTINGS),
    promote: promotionField("train-promote"),
  };
  const groups = [
    group(
      "Data",
      labelled(
        "Training data, one path per line",
        fields.paths,
        "In the server's data folder: .jsonl files of pairs, or folders of labelled data sets.",
      ),
      row(
        labelled("Field of the query", fields.anchor, "In .jsonl files."),
        labelled("Field of the matching text", fields.positive, "In .jsonl files."),
      ),
    ),
    group(
      "Training",
      row(labelled("Encoder to start from", fields.encoder), labelled("Method", fields.method)),
      labelled(
        "Other settings as JSON",
        fields.settings,
        "As in the file of lathe train: cap, training, evaluate, target and others.",
      ),
    ),
    group(
      "Result",
      row(
        labelled("Name of the new encoder", fields.name, "An existing trained encoder gets a new version."),
        labelled("Make the new version live", fields.promote, "Requests for the name then get its vectors."),
      ),
    ),
  ];
  return jobForm("train", "train", groups, async () => bodyOf(fields), "Start the training");
}

/** Build the request of `POST /train`. Throws `InputError` if something is missing. */
function bodyOf(fields) {
  const paths = fields.paths.value
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "");
  if (paths.length === 0) {
    throw new InputError("Training data: give at least one path.");
  }
  const pair = { anchor: fields.anchor.value.trim(), positive: fields.positive.value.trim() };
  const sources = paths.map((path) => (path.endsWith(".jsonl") ? { jsonl: path, ...pair } : { folder: path }));
  const settings = parsedJson(fields.settings.value.trim() || "{}", "Other settings");
  return {
    name: fields.name.value.trim(),
    method: fields.method.value,
    job: { encoder: fields.encoder.value, sources, ...settings },
    promote: PROMOTIONS[fields.promote.value][1],
  };
}
