// A fit, from a file here or a source of the server's to a new version of a chain.

import { get, post } from "./api.js";
import { gateFields } from "./certificate.js";
import { empty, fill, h, labelled, select } from "./dom.js";
import { count } from "./format.js";
import { InputError, sentenceOf } from "./notices.js";
import { readSource, withinLimit } from "./upload.js";

const FREE = "free";
const SIZE = "SIZE";

/** Steps that are sensible as they are; SIZE stands for the dimensions asked for. */
const CHOICES = {
  compact: {
    says: "Debias and shrink: R2, then nested GeoPres; any smaller size can be asked for too",
    steps: [{ kind: "r2" }, { kind: "geopres", dimensions: SIZE, nested: true }],
  },
  debias: { says: "Debias only: R2 takes the mean direction out", steps: [{ kind: "r2" }] },
  pca: {
    says: "Debias and shrink by PCA: fitted at once, nested too",
    steps: [{ kind: "r2" }, { kind: "pca", dimensions: SIZE }],
  },
  bytes: {
    says: "Debias, shrink, and store a byte a dimension",
    steps: [{ kind: "r2" }, { kind: "geopres", dimensions: SIZE }, { kind: "int8" }],
  },
  [FREE]: { says: "Steps of your own, as JSON", steps: null },
};

const PROMOTIONS = {
  first: ["if no version is live yet", undefined],
  yes: ["if it reaches its gates", true],
  no: ["never: I promote it myself", false],
};

/** The page to fit a chain. */
export const fitView = {
  title: () => "Fit a chain",
  every: 0,
  async load(_args, options) {
    const info = await get("info", options);
    return { encoders: info.encoders.map(({ name, dimensions }) => ({ name, dimensions })), most: info.max_body_bytes };
  },
  draw: ({ encoders, most }) => (encoders.length ? fitForm(encoders, most) : empty("No encoder is served.")),
};

function fitForm(encoders, most) {
  const fields = {
    name: h("input", { id: "fit-name", required: true, autocomplete: "off", placeholder: "mine" }),
    file: h("input", { id: "fit-file", type: "file", accept: ".txt,.jsonl,.npy" }),
    path: h("input", { id: "fit-path", autocomplete: "off", placeholder: "pydoc:" }),
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
    promote: select(
      "fit-promote",
      Object.entries(PROMOTIONS).map(([value, [text]]) => [value, text]),
    ),
  };
  const gates = gateFields();
  const problem = h("div", { id: "fit-problem", role: "alert" });
  const write = () => writeSteps(fields);
  write();
  const submit = async (event) => {
    event.preventDefault();
    const button = event.target.querySelector("#fit-submit");
    button.disabled = true;
    fill(problem);
    try {
      const { job_id: id } = await post("fit-transform", await bodyOf(fields, gates, most));
      location.hash = `#/jobs/${id}`;
    } catch (error) {
      fill(problem, h("p", { class: "notice bad" }, sentenceOf(error)));
    }
    button.disabled = false;
  };
  return h(
    "form",
    { id: "fit-form", onsubmit: submit },
    parts(fields, gates),
    problem,
    h("p", { class: "buttons" }, h("button", { type: "submit", id: "fit-submit", class: "main" }, "Start the fit")),
  );
}

function parts(fields, gates) {
  const group = (legend, ...inside) => h("fieldset", { class: "card" }, h("legend", {}, legend), inside);
  return [
    group(
      "What to fit on",
      labelled(
        "A file from here",
        fields.file,
        "Texts: .txt, one a line, or .jsonl with a field text. Vectors: .npy of float32 or float64.",
      ),
      labelled(
        "or a source of the server",
        fields.path,
        "pydoc: is Python's own docstrings; a path lies in the server's data folder.",
      ),
      h(
        "div",
        { class: "row" },
        labelled("Rows of the file, from its start", fields.rows),
        labelled("Encoder", fields.encoder, "It embeds texts; of vectors it says whose they are."),
      ),
    ),
    group(
      "What to make of it",
      h(
        "div",
        { class: "row" },
        labelled("Name of the chain", fields.name, "A name that is there gets a new version."),
        labelled("Dimensions", fields.size),
      ),
      labelled("Steps", fields.choice),
      labelled("Steps as they are sent", fields.steps),
    ),
    group(
      "What it must reach",
      h("p", { class: "hint" }, "A version below a gate is kept, and not made live."),
      gates.element,
      labelled("Make it live", fields.promote),
    ),
  ];
}

/** The steps of the choice as JSON; steps of one's own begin with what stood there. */
function writeSteps({ choice, size, steps }) {
  const chosen = CHOICES[choice.value].steps;
  steps.readOnly = chosen !== null;
  const sized = JSON.stringify(chosen).includes(SIZE) || chosen === null;
  size.disabled = !sized || chosen === null;
  if (chosen !== null) {
    steps.value = JSON.stringify(chosen).replaceAll(`"${SIZE}"`, String(Number(size.value) || 128));
  }
}

/** The request of `POST /fit-transform`. Throws with what is missing. */
async function bodyOf(fields, gates, most) {
  const encoder = fields.encoder.value || undefined;
  return {
    name: fields.name.value.trim(),
    steps: parsedSteps(fields.steps.value),
    source: await sourceOf(fields, encoder, most),
    encoder,
    gates: gates.read(),
    promote: PROMOTIONS[fields.promote.value][1],
  };
}

function parsedSteps(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new InputError(`the steps are not JSON: ${error.message}`);
  }
}

async function sourceOf({ file, path, rows }, encoder, most) {
  const chosen = file.files[0];
  if (Boolean(chosen) === Boolean(path.value.trim())) {
    throw new InputError("give a file or a source of the server, one of the two");
  }
  if (!chosen) {
    return { path: path.value.trim() };
  }
  const read = await readSource(chosen);
  if (read.kind === "texts" && !encoder) {
    throw new InputError(`${chosen.name} holds ${count(read.list.length)} texts: choose the encoder that embeds them`);
  }
  return { [read.kind]: withinLimit(read, most, rows.value === "" ? null : Number(rows.value)) };
}
