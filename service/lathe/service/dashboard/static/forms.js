// Parts of the forms that start jobs.

import { get, post } from "./api.js";
import { fill, h, labelled, select } from "./dom.js";
import { InputError, sentenceOf } from "./notices.js";
import { readPairs, readSource, withinLimit } from "./upload.js";

const JOBS = [
  ["#/fit", "Fit a chain", "from texts or vectors, to smaller or better vectors"],
  ["#/adapt", "Adapt to searches", "from judged searches, to the change that helps most"],
  ["#/migrate", "Compare encoders", "from rows and judged searches, to whether another encoder is worth it"],
  ["#/train", "Train an encoder", "from labelled data, to the next version of an encoder"],
];

/** When a new version becomes live, as `[text, promote]`. */
export const PROMOTIONS = {
  first: ["If no version is live yet", undefined],
  yes: ["If it passes its gates", true],
  no: ["Never: I will promote it myself", false],
};

/** Load the names of the encoders and the limit of a request, for forms. */
export async function loadServer(_args, options) {
  const info = await get("info", options);
  const encoders = info.encoders.map(({ name, dimensions, upstream }) => ({
    name,
    dimensions,
    upstream: Boolean(upstream),
  }));
  return { encoders, most: info.max_body_bytes };
}

/** Create the links between the forms of the kinds of jobs. */
export function jobChoice(address) {
  const link = ([href, name, says]) =>
    h(
      "li",
      {},
      h("a", { href, "aria-current": href === address ? "true" : null }, h("strong", {}, name), h("span", {}, says)),
    );
  return h("nav", { "aria-label": "Kinds of jobs" }, h("ul", { class: "choice" }, JOBS.map(link)));
}

/** Create a group of fields. */
export function group(legend, ...fields) {
  return h("fieldset", { class: "card" }, h("legend", {}, legend), fields);
}

/** Create fields that stand side by side. */
export function row(...fields) {
  return h("div", { class: "row" }, fields);
}

/** Create the fields of judged searches, with a hint on the file. */
export function pairFields(prefix, fileHint) {
  return dataFields(`${prefix}-pairs`, "Judged searches", {
    accept: ".jsonl",
    fileHint,
    pathHint: "In the server's data folder.",
    placeholder: "judged.jsonl",
  });
}

/** Return judged searches as a request takes them: those of the file, or the path on the server. */
export async function pairsOf(fields, most) {
  const file = fields.file();
  return file ? withinLimit(await readPairs(file), most, null) : fields.path();
}

/** Create the choice of when a new version becomes live. */
export function promotionField(id) {
  return select(
    id,
    Object.entries(PROMOTIONS).map(([value, [text]]) => [value, text]),
  );
}

/**
 * Create a form that starts a job, and goes to the page of the job.
 * @param {string} name start of the ids in the form.
 * @param {string} path of the API.
 * @param {function(): Promise<object>} body builds the request; throws `InputError` if something is missing.
 * @param {string} button its text.
 */
export function jobForm(name, path, groups, body, button) {
  const problem = h("div", { id: `${name}-problem`, role: "alert" });
  const start = h("button", { type: "submit", id: `${name}-submit`, class: "main" }, button);
  const submit = async (event) => {
    event.preventDefault();
    start.disabled = true;
    fill(problem);
    try {
      const { job_id: id } = await post(path, await body());
      location.hash = `#/jobs/${id}`;
    } catch (error) {
      fill(problem, h("p", { class: "notice bad" }, sentenceOf(error)));
    }
    start.disabled = false;
  };
  return h(
    "form",
    { id: `${name}-form`, class: "job-form", onsubmit: submit },
    groups,
    problem,
    h("p", { class: "buttons" }, start),
  );
}

/**
 * Create two fields for data: a file of the visitor, or a path on the server.
 * @param {string} id start of the fields' ids.
 * @param {string} what the data, for the labels and errors.
 * @param {string} accept endings of the file.
 * @param {string} fileHint what the file must hold; `pathHint` likewise.
 * @returns {{element: Element, file: function(): File|null, path: function(): string, isEmpty: function(): boolean}}
 */
export function dataFields(id, what, { accept, fileHint, pathHint, placeholder }) {
  const file = h("input", { id: `${id}-file`, type: "file", accept });
  const path = h("input", { id: `${id}-path`, autocomplete: "off", spellcheck: "false", placeholder });
  const chosen = () => {
    const [one, other] = [file.files[0] ?? null, path.value.trim()];
    if (one && other) {
      throw new InputError(`${what}: give a file or a path on the server, not both.`);
    }
    return [one, other];
  };
  const isEmpty = () => !file.files[0] && path.value.trim() === "";
  const require = () => {
    if (isEmpty()) {
      throw new InputError(`${what}: give a file or a path on the server.`);
    }
  };
  return {
    element: row(
      labelled("File on this computer", file, fileHint),
      labelled("Or a path on the server", path, pathHint),
    ),
    isEmpty,
    require,
    file: () => chosen()[0],
    path: () => chosen()[1],
  };
}

/** Return the rows of a chosen file or path as the API's `source`. */
export async function sourceOf(fields, most, rows = null, check = () => null) {
  fields.require();
  const file = fields.file();
  if (!file) {
    return { path: fields.path() };
  }
  const read = await readSource(file);
  check(read, file);
  return { [read.kind]: withinLimit(read, most, rows) };
}

/** Parse JSON that was typed. Throws `InputError`. */
export function parsedJson(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new InputError(`${what}: this is not JSON (${error.message}).`);
  }
}
