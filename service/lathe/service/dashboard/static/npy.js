// NumPy's .npy files: a short header, then the numbers of a matrix.

import { InputError } from "./notices.js";

const MAGIC = "\u0093NUMPY";
const READERS = { f4: [Float32Array, 4], f8: [Float64Array, 8] };

/**
 * Read the rows of a .npy file.
 * @param {ArrayBuffer} buffer the whole file.
 * @returns {{rows: number, columns: number, row: function(number): Float32Array}} numbers in float32.
 * @throws {InputError} if it is not a .npy matrix of floats.
 */
export function readNpy(buffer) {
  const start = new Uint8Array(buffer, 0, Math.min(buffer.byteLength, 12));
  if (start.length < 12 || String.fromCharCode(...start.subarray(0, 6)) !== MAGIC) {
    throw new InputError("This is not a .npy file.");
  }
  const view = new DataView(buffer);
  const [lengthBytes, length] = start[6] === 1 ? [2, view.getUint16(8, true)] : [4, view.getUint32(8, true)];
  const begin = 8 + lengthBytes + length;
  const header = new TextDecoder("latin1").decode(new Uint8Array(buffer, 8 + lengthBytes, length));
  const kind = /'descr':\s*'<(f4|f8)'/.exec(header)?.[1];
  const shape = /'shape':\s*\((\d+),\s*(\d+)\)/.exec(header);
  if (!kind || !shape || /'fortran_order':\s*True/.test(header)) {
    throw new InputError(
      `The file must hold a matrix of float32 or float64, row by row. Its header says ${header.trim()}.`,
    );
  }
  const [rows, columns] = [Number(shape[1]), Number(shape[2])];
  const [Numbers, size] = READERS[kind];
  if (buffer.byteLength - begin !== rows * columns * size) {
    throw new InputError(`The header says ${rows} × ${columns} numbers, but the file does not hold as many.`);
  }
  const values = new Numbers(buffer.slice(begin)); // a copy: headers of old files are not aligned
  return { rows, columns, row: (index) => Float32Array.from(values.subarray(index * columns, (index + 1) * columns)) };
}

/** Encode the little-endian bytes of a row in base64, as the API takes vectors. */
export function asBase64(row) {
  const bytes = new Uint8Array(row.buffer);
  let text = "";
  for (let start = 0; start < bytes.length; start += 4096) {
    text += String.fromCharCode(...bytes.subarray(start, start + 4096));
  }
  return btoa(text);
}
