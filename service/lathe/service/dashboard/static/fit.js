// The form that fits a chain.

import { gateFields } from "./certificate.js";
import { empty, h, labelled, select } from "./dom.js";
import { count } from "./format.js";
import {
  dataFields,
  group,
  jobChoice,
  jobForm,
  loadServer,
  parsedJson,
  PROMOTIONS,
  promotionField,
  row,
  sourceOf,
} from "./forms.js";
import { InputError } from "./notices.js";

const FREE = "free";
const SIZE = "SIZE";

/** Steps to choose from; SIZE stands for the dimensions entered. */
const CHOICES = {
  compact: {
    says: "Debias and shrink: R2, then nested GeoPres, which serves any smaller size too",
    steps: [{ kind: "r2" }, { kind: "geopres", dimensions: SIZE, nested: true }],
  },
  debias: { says: "Debias only: R2 removes the mean direction", steps: [{ kind: "r2" }] },
  pca: {
    says: "Debias and shrink by PCA: quick to fit, nested too",
    steps: [{ kind: "r2" }, { kind: "pca", dimensions: SIZE }],
  },
  bytes: {
    says: "Debias, shrink, and store one byte per dimension",
    steps: [{ kind: "r2" }, { kind: "geopres", dimensions: SIZE }, { kind: "int8" }],
  },
  [FREE]: { says: "Other steps, written as JSON", steps: null },
};

/** The page of the form that fits a chain. */
export const fitView = {
  title: () => "New job: fit a chain",
  every: 0,
  load: loadServer,
  draw: ({ encoders, most }) => [
    jobChoice("#/fit"),
    encoders.length ? fitForm(encoders, most) : empty("This server has no encoder."),
  ],
};

function fitForm(encoders, most) {
  const fields = {
    name: h("input", { id: "fit-name", required: true, autocomplete: "off", placeholder: "my-chain" }),
    data: dataFields("fit", "Texts or vectors", {
      accept: ".txt,.jsonl,.npy",
      fileHint: "Texts: .txt with one per line, or .jsonl with a field text. Vectors: .npy of float32 or float64.",
      pathHint: "In the server's data folder; pydoc: means Python's own docstrings.",
      placeholder: "pydoc:",
    }),
    rows: h("input", { id: "fit-rows", type: "number", min: "4", step: "1", placeholder: "all" }),
    encoder: select("fit-encoder", [
      ...encoders.map((one) => [one.name, one.name]),
      ["", "none: vectors of another model"],
    ]),
    choice: select(
      "fit-choice",
      Object.entries(CHOICES).map(([value, { says }]) => [value, says]),
      "compact",
      () => write(),
    ),
    size: h("input", { id: "fit-size", type: "number", min: "1", step: "1", value: "128", onchange: () => write() }),
    steps: h("textarea", { id: "fit-steps", rows: "3", spellcheck: "false" }),
    promote: promotionField("fit-promote"),
  };
  const gates = gateFields();
  const write = () => writeSteps(fields);
  write();
  const groups = [
    group(
      "Data",
      fields.data.element,
      row(
        labelled("Rows of the file, from its start", fields.rows, "Only for a file on this computer."),
        labelled("Encoder", fields.encoder, "It embeds texts. For vectors: the encoder that they are from."),
      ),
    ),
    group(
      "Chain",
      row(
        labelled("Name of the chain", fields.name, "An existing chain gets a new version."),
        labelled("Dimensions", fields.size, "Size of the chain's vectors."),
      ),
      labelled("Steps", fields.choice),
      labelled("Steps as JSON", fields.steps),
    ),
    group(
      "Quality",
      h("p", { class: "hint" }, "A version that fails a gate is stored, but does not become live."),
      gates.element,
      row(labelled("Make the new version live", fields.promote)),
    ),
  ];
  return jobForm("fit", "fit-transform", groups, () => bodyOf(fields, gates, most), "Start the fit");
}

/** Write the chosen steps as JSON. Other steps start from what stood there. */
function writeSteps({ choice, size, steps }) {
  const chosen = CHOICES[choice.value].steps;
  steps.readOnly = chosen !== null;
  size.disabled = chosen === null || !JSON.stringify(chosen).includes(SIZE);
  if (chosen !== null) {
    steps.value = JSON.stringify(chosen).replaceAll(`"${SIZE}"`, String(Number(size.value) || 128));
  }
}

/** Build the request of `POST /fit-transform`. Throws `InputError` if something is missing. */
async function bodyOf(fields, gates, most) {
  const encoder = fields.encoder.value || undefined;
  const rows = fields.rows.value === "" ? null : Number(fields.rows.value);
  const requireEncoder = ({ kind, list }, file) => {
    if (kind === "texts" && !encoder) {
      throw new InputError(`${file.name} holds ${count(list.length)} texts: choose the encoder that embeds them.`);
    }
  };
  return {
    name: fields.name.value.trim(),
    steps: parsedJson(fields.steps.value, "Steps"),
    source: await sourceOf(fields.data, most, rows, requireEncoder),
    encoder,
    gates: gates.read(),
    promote: PROMOTIONS[fields.promote.value][1],
  };
}
