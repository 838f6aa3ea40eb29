// Notices above the page, and questions before an action.

import { ApiError } from "./api.js";
import { fill, h } from "./dom.js";

/** Show a sentence until it is dismissed or replaced. `kind` is `good` or `bad`. */
export function notice(sentence, kind = "good") {
  const place = document.getElementById("notices");
  const word = kind === "bad" ? "Error: " : "";
  const close = h("button", { type: "button", class: "quiet", onclick: () => fill(place) }, "Dismiss");
  fill(place, h("p", { class: `notice ${kind}` }, h("span", {}, h("b", {}, word), sentence), close));
}

/** Remove the notice, which belongs to the page that is left. */
export function clearNotice() {
  fill(document.getElementById("notices"));
}

/**
 * Run an action and show its outcome as a notice.
 * @param {string|function} done the sentence if it succeeds, or a function of the action's result that returns it.
 * @returns {Promise<boolean>} whether it succeeded.
 */
export async function attempt(work, done) {
  try {
    const result = await work();
    notice(typeof done === "function" ? done(result) : done);
    return true;
  } catch (error) {
    notice(sentenceOf(error), "bad");
    return false;
  }
}

/** A form that is filled in wrongly; the message says what is wrong. */
export class InputError extends Error {}

/** Return an error as a sentence. Unexpected errors are logged to the console too. */
export function sentenceOf(error) {
  if (!(error instanceof ApiError || error instanceof InputError)) {
    console.error(error);
  }
  return error.message;
}

/** Ask before an action, and resolve to whether it should be done. */
export function confirmed({ title, text, yes }) {
  const dialog = document.getElementById("confirm-dialog");
  fill(document.getElementById("confirm-title"), title);
  fill(document.getElementById("confirm-text"), text);
  const button = document.getElementById("confirm-yes");
  fill(button, yes);
  dialog.returnValue = "";
  button.onclick = () => dialog.close("yes");
  document.getElementById("confirm-no").onclick = () => dialog.close("");
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
