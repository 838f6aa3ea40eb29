// Files as data of a job: read here, and sent as texts, vectors or judged searches.

import { bytes, count } from "./format.js";
import { InputError } from "./notices.js";
import { asBase64, readNpy } from "./npy.js";

/**
 * Read the rows of a file.
 * @param {File} file texts, one per line (.txt) or in the field `text` (.jsonl), or vectors (.npy).
 * @returns {Promise<{kind: "texts"|"vectors", list: Array<string>, width: number|null}>}
 * @throws {InputError} with the line that cannot be read.
 */
export async function readSource(file) {
  const ending = endingOf(file);
  if (ending === "npy") {
    const matrix = readNpy(await file.arrayBuffer());
    const list = Array.from({ length: matrix.rows }, (_, index) => asBase64(matrix.row(index)));
    return { kind: "vectors", list, width: matrix.columns };
  }
  if (!["txt", "jsonl"].includes(ending)) {
    throw new InputError(`${file.name}: choose a .txt, .jsonl or .npy file.`);
  }
  if (ending === "txt") {
    const lines = (await file.text()).split(/\r?\n/);
    return { kind: "texts", list: lines.filter((text) => text.trim() !== ""), width: null };
  }
  const list = (await readLines(file)).map(([row, line]) => {
    const text = typeof row === "string" ? row : row?.text;
    if (typeof text !== "string") {
      throw new InputError(`Line ${line} has no field "text" with a text.`);
    }
    return text;
  });
  return { kind: "texts", list: list.filter((text) => text.trim() !== ""), width: null };
}

/**
 * Read judged searches from a .jsonl file with the fields `query` and `document`.
 * @returns {Promise<{kind: "pairs", list: Array<{query: string, document: string}>}>}
 * @throws {InputError} with the line that cannot be read.
 */
export async function readPairs(file) {
  if (endingOf(file) !== "jsonl") {
    throw new InputError(`${file.name}: choose a .jsonl file.`);
  }
  const list = (await readLines(file)).map(([row, line]) => {
    if (typeof row?.query !== "string" || typeof row?.document !== "string") {
      throw new InputError(`Line ${line} needs the fields "query" and "document", each with a text.`);
    }
    return { query: row.query, document: row.document };
  });
  return { kind: "pairs", list };
}

function endingOf(file) {
  return file.name.toLowerCase().replace(/^.*\./, "");
}

/** Parse the lines of a .jsonl file that are not blank, each with its number. */
async function readLines(file) {
  const lines = (await file.text()).split(/\r?\n/);
  return lines
    .map((text, index) => [text, index + 1])
    .filter(([text]) => text.trim() !== "")
    .map(([text, line]) => {
      try {
        return [JSON.parse(text), line];
      } catch {
        throw new InputError(`Line ${line} is not JSON.`);
      }
    });
}

/**
 * Return the first rows of a file, if a request may hold them.
 * @param {number} most bytes that a request may have.
 * @param {number|null} wanted rows; null for all.
 * @throws {InputError} with the number of rows that would fit.
 */
export function withinLimit({ list }, most, wanted) {
  const chosen = wanted === null ? list : list.slice(0, wanted);
  if (chosen.length === 0) {
    throw new InputError("The file has no rows.");
  }
  const encoder = new TextEncoder();
  let size = 2000; // the other fields of the request
  for (let index = 0; index < chosen.length; index += 1) {
    size += encoder.encode(JSON.stringify(chosen[index])).length + 1;
    if (size > most) {
      throw new InputError(
        `A request may have ${bytes(most)}, and the first ${count(index)} rows fill it. Use that many, or put ` +
          "the file into the server's data folder and give its path.",
      );
    }
  }
  return chosen;
}
