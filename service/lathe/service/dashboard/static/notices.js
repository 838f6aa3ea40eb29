// What happened, said above the page; and questions before something is done.

import { ApiError } from "./api.js";
import { fill, h } from "./dom.js";

/** Say a sentence until it is dismissed or another comes. `kind` is `good` or `bad`. */
export function notice(sentence, kind = "good") {
  const place = document.getElementById("notices");
  const word = kind === "bad" ? "Error: " : "";
  const close = h("button", { type: "button", class: "quiet", onclick: () => fill(place) }, "dismiss");
  fill(place, h("p", { class: `notice ${kind}` }, h("span", {}, h("b", {}, word), sentence), close));
}

/** Do something, then say that it is done; or say the error. Returns whether it was done. */
export async function attempt(work, done) {
  try {
    await work();
    notice(done);
    return true;
  } catch (error) {
    notice(sentenceOf(error), "bad");
    return false;
  }
}

/** What was filled in cannot be used; the message says why. */
export class InputError extends Error {}

/** An error as a sentence; one that nobody foresaw goes to the console too. */
export function sentenceOf(error) {
  if (!(error instanceof ApiError || error instanceof InputError)) {
    console.error(error);
  }
  return error.message;
}

/** Ask before something is done; resolves to whether it should be. */
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
