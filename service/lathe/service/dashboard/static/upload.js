// A file as the source of a fit: read here, and sent as texts or vectors.

import { bytes, count } from "./format.js";
import { InputError } from "./notices.js";
import { asBase64, readNpy } from "./npy.js";

/**
 * What a file holds.
 * @param {File} file of texts, one a line (.txt) or in the field `text` (.jsonl), or of vectors (.npy).
 * @returns {Promise<{kind: "texts"|"vectors", list: Array<string>, width: number|null}>}
 * @throws {InputError} with the line that cannot be read.
 */
export async function readSource(file) {
  const ending = file.name.toLowerCase().replace(/^.*\./, "");
  if (ending === "npy") {
    const matrix = readNpy(await file.arrayBuffer());
    const list = Array.from({ length: matrix.rows }, (_, index) => asBase64(matrix.row(index)));
    return { kind: "vectors", list, width: matrix.columns };
  }
  if (!["txt", "jsonl"].includes(ending)) {
    throw new InputError(`${file.name}: a .txt, .jsonl or .npy file is needed`);
  }
  const lines = (await file.text()).split(/\r?\n/);
  const texts = ending === "txt" ? lines : lines.map((line, index) => (line.trim() ? textOf(line, index + 1) : ""));
  return { kind: "texts", list: texts.filter((text) => text.trim() !== ""), width: null };
}

function textOf(line, number) {
  let found;
  try {
    found = JSON.parse(line);
  } catch {
    throw new InputError(`line ${number} is not JSON`);
  }
  const text = typeof found === "string" ? found : found?.text;
  if (typeof text !== "string") {
    throw new InputError(`line ${number} has no field "text" with a text`);
  }
  return text;
}

/**
 * The first rows of a source, within what a request may hold.
 * @param {number} most bytes of a request.
 * @param {number|null} wanted rows; null for all.
 * @throws {InputError} with how many rows would fit.
 */
export function withinLimit({ list }, most, wanted) {
  const chosen = wanted === null ? list : list.slice(0, wanted);
  if (chosen.length === 0) {
    throw new InputError("the file holds no rows");
  }
  const encoder = new TextEncoder();
  let size = 2000; // all else of the request
  for (let index = 0; index < chosen.length; index += 1) {
    size += encoder.encode(JSON.stringify(chosen[index])).length + 1;
    if (size > most) {
      throw new InputError(
        `a request may hold ${bytes(most)}, which the first ${count(index)} rows fill: use that many, or put ` +
          "the file into the server's data folder and name its path",
      );
    }
  }
  return chosen;
}
