// The key of whoever looks: asked for when the server wants one, held in this module and nowhere else.

import { h } from "./dom.js";

let key = null;
let asking = null;

/** The key that is held, or null. */
export function heldKey() {
  return key;
}

/** Headers that carry it. A key beyond Latin-1 is sent as the bytes of its UTF-8, as the server reads it. */
export function keyHeaders() {
  return key === null ? {} : { authorization: `Bearer ${String.fromCharCode(...new TextEncoder().encode(key))}` };
}

/** Hold a key, or with null forget it. */
function hold(value) {
  key = value;
  document.getElementById("key-held").hidden = key === null;
}

/** Forget a key that was refused, unless another took its place meanwhile. */
export function dropKey(refused) {
  if (key === refused) {
    hold(null);
  }
}

/**
 * Ask for a key; those who ask at once share one dialog.
 * @param {string} why the server's sentence.
 * @returns {Promise<boolean>} whether one was given.
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

/** Let the dialog and the button that forgets work. */
export function wireKeys() {
  const dialog = document.getElementById("key-dialog");
  document.getElementById("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    dialog.close("given");
  });
  document.getElementById("key-cancel").addEventListener("click", () => dialog.close(""));
  document.getElementById("key-forget").addEventListener("click", () => hold(null));
}
