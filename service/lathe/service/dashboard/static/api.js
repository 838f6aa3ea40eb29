// The server's HTTP API, by paths relative to this page: it may be served below a prefix.

import { askForKey, dropKey, heldKey, keyHeaders } from "./keys.js";

/** A request that failed. */
export class ApiError extends Error {
  /**
   * @param {number} status 0 if there was no answer.
   * @param {string} code the server's word for the problem.
   * @param {string|null} param the field of the request at fault.
   */
  constructor(message, status = 0, code = "", param = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.param = param;
  }

  /** Whether another key could help. Paths outside the server's data folder are answered 403 too, with a field. */
  get needsKey() {
    return this.status === 401 || (this.status === 403 && this.code === "forbidden" && this.param === null);
  }
}

/**
 * Return the JSON of an answer. If a key is missing or refused, ask for one and send the request again.
 * @param {string} path such as `chains/compact`, its parts encoded.
 * @param {object} options `quiet` throws instead of asking for a key.
 * @throws {ApiError} with a sentence for the page.
 */
export async function get(path, options = {}) {
  return (await send("GET", path, undefined, options)).json();
}

/** Return the text of an answer, as `get`. */
export async function getText(path, options = {}) {
  return (await send("GET", path, undefined, options)).text();
}

/** Return a file, as `get`. */
export async function getFile(path) {
  return (await send("GET", path)).blob();
}

/** Send JSON and return the JSON of the answer; errors as `get`. */
export async function post(path, content = {}) {
  return (await send("POST", path, JSON.stringify(content))).json();
}

/** Send JSON and return the answer with its headers, `{content, headers}`. */
export async function postForHeaders(path, content) {
  const answer = await send("POST", path, JSON.stringify(content));
  return { content: await answer.json(), headers: answer.headers };
}

/** Delete or cancel something; errors as `get`. */
export async function remove(path) {
  return (await send("DELETE", path)).json();
}

/** Return what `get` does, or null if the server has no such thing. */
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
    const problem = await problemOf(answer, used);
    if (quiet || !problem.needsKey) {
      throw problem;
    }
    if (heldKey() !== used) {
      continue; // another request asked for a key meanwhile
    }
    if (answer.status === 401) {
      dropKey(used);
    }
    if (!(await askForKey(problem.message))) {
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
    throw new ApiError("The server does not answer. It may have stopped, or the network is down.");
  }
}

async function problemOf(answer, key) {
  let problem;
  try {
    const { error } = await answer.json();
    problem = new ApiError(sentence(error.message), answer.status, error.code, error.param ?? null);
  } catch {
    problem = new ApiError(`The server answered with status ${answer.status} ${answer.statusText}.`, answer.status);
  }
  if (problem.needsKey) {
    problem.message = keyProblem(answer.status, problem.message, key);
  }
  return problem;
}

/** Say what is wrong with the key that was sent, or that none was sent. */
function keyProblem(status, message, key) {
  if (status === 403) {
    return "This key allows use only. Changes need an admin key.";
  }
  const needed = message.includes("admin")
    ? "This action needs an admin key: one of LATHE_ADMIN_KEYS, or the one in admin.key in the server's state folder."
    : "This server answers only with a key: one of LATHE_API_KEYS or an admin key.";
  return key === null ? needed : `The server does not know this key. ${needed}`;
}

/** Write an error message as a sentence. */
function sentence(message) {
  const text = message.charAt(0).toUpperCase() + message.slice(1);
  return /[.!?…]$/.test(text) ? text : `${text}.`;
}
