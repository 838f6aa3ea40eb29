// The server's HTTP API, by paths relative to this page: it may be served below a prefix.

import { askForKey, dropKey, heldKey, keyHeaders } from "./keys.js";

/** What the server, or the way to it, has to say against a request. */
export class ApiError extends Error {
  /** @param {number} status 0 where there was no answer. */
  constructor(message, status = 0, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/**
 * JSON of an answer. Where a key is missing or refused, one is asked for and the request made again.
 * @param {string} path such as `chains/compact`, its parts encoded.
 * @param {object} options `quiet` throws instead of asking for a key.
 * @throws {ApiError} with the server's own sentence.
 */
export async function get(path, options = {}) {
  return (await send("GET", path, undefined, options)).json();
}

/** The text of an answer, as `get`. */
export async function getText(path, options = {}) {
  return (await send("GET", path, undefined, options)).text();
}

/** A file, as `get`. */
export async function getFile(path) {
  return (await send("GET", path)).blob();
}

/** JSON there and back; errors as `get`. */
export async function post(path, content = {}) {
  return (await send("POST", path, JSON.stringify(content))).json();
}

/** The same with the answer's headers: `{content, headers}`. */
export async function postForHeaders(path, content) {
  const answer = await send("POST", path, JSON.stringify(content));
  return { content: await answer.json(), headers: answer.headers };
}

/** Set something up, as `post`. */
export async function put(path, content = {}) {
  return (await send("PUT", path, JSON.stringify(content))).json();
}

/** Remove, or cancel; errors as `get`. */
export async function remove(path) {
  return (await send("DELETE", path)).json();
}

/** What is there, or null where the server has no such thing. */
export async function getIfThere(path, options = {}) {
  try {
    return await get(path, options);
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) {
      return null;
    }
    throw error;
  }
}

/**
 * Each event of a stream, parsed. With `fetch` and not `EventSource`, which can send no key.
 * @param {AbortSignal} signal ends it.
 */
export async function* events(path, signal) {
  const answer = await send("GET", path, undefined, { quiet: true, signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) {
      return;
    }
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts.filter((one) => one.startsWith("data: "))) {
      yield JSON.parse(part.slice("data: ".length));
    }
  }
}

async function send(method, path, body, { quiet = false, signal } = {}) {
  for (;;) {
    const used = heldKey();
    const answer = await reach(method, path, body, signal);
    if (answer.ok) {
      return answer;
    }
    const problem = await problemOf(answer);
    if (quiet || ![401, 403].includes(answer.status)) {
      throw problem;
    }
    if (heldKey() !== used) {
      continue; // given meanwhile, to another request
    }
    if (answer.status === 401) {
      dropKey(used);
    }
    if (!(await askForKey(used === null ? problem.message : `The key was refused: ${problem.message}`))) {
      throw problem;
    }
  }
}

async function reach(method, path, body, signal) {
  const headers = { ...keyHeaders(), ...(body === undefined ? {} : { "content-type": "application/json" }) };
  try {
    return await fetch(path, { method, headers, body, signal, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (signal?.aborted) {
      throw error;
    }
    throw new ApiError("the server cannot be reached");
  }
}

async function problemOf(answer) {
  try {
    const { error } = await answer.json();
    return new ApiError(error.message, answer.status, error.code);
  } catch {
    return new ApiError(`the server answered ${answer.status} ${answer.statusText}`, answer.status);
  }
}
