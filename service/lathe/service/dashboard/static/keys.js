// The visitor's key: asked for when the server wants one, and held in this module only.

import { h } from "./dom.js";

let key = null;
let asking = null;

/** Return the held key, or null. */
export function heldKey() {
  return key;
}

/** Return the headers with the key. Characters beyond Latin-1 are sent as UTF-8, as the server reads them. */
export function keyHeaders() {
  return key === null ? {} : { authorization: `Bearer ${String.fromCharCode(...new TextEncoder().encode(key))}` };
}

/** Hold a key, or forget it with null. */
function hold(value) {
  key = value;
  document.getElementById("key-held").hidden = key === null;
}

/** Forget a refused key, unless another has replaced it meanwhile. */
export function dropKey(refused) {
  if (key === refused) {
    hold(null);
  }
}

/**
 * Ask for a key. Requests that ask at once share one dialog.
 * @param {string} why a sentence on what the key is needed for.
 * @returns {Promise<boolean>} whether a key was entered.
 */
export function askForKey(why) {
  asking ??= openDialog(why).finally(() => {
    asking = null;
  });
  return asking;
}

function openDialog(why) {
  const dialog = document.getElementById("key-dialog");
  const input = document.getElementById("key-input");
  document.getElementById("key-why").replaceChildren(h("span", {}, why));
  input.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  input.focus();
  return new Promise((resolve) => {
    dialog.addEventListener(
      "close",
      () => {
        const given = dialog.returnValue === "given" ? input.value.trim() : "";
        input.value = "";
        if (given) {
          hold(given);
        }
        resolve(given !== "");
      },
      { once: true },
    );
  });
}

/** Connect the dialog and the button that forgets the key. */
export function wireKeys() {
  const dialog = document.getElementById("key-dialog");
  document.getElementById("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    dialog.close("given");
  });
  document.getElementById("key-cancel").addEventListener("click", () => dialog.close(""));
  document.getElementById("key-forget").addEventListener("click", () => hold(null));
}
