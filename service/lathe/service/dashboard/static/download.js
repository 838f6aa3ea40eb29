// Saving files of the API. They are fetched, because a link could send no key.

import { getFile } from "./api.js";
import { h } from "./dom.js";
import { notice, sentenceOf } from "./notices.js";

/** Create a button that saves the file at a path under a name. */
export function saveButton(path, name, text) {
  const save = async () => {
    try {
      const url = URL.createObjectURL(await getFile(path));
      h("a", { href: url, download: name }).click();
      setTimeout(() => URL.revokeObjectURL(url), 10_000); // the browser has begun to save by then
    } catch (error) {
      notice(sentenceOf(error), "bad");
    }
  };
  return h("button", { type: "button", id: `save-${name}`, onclick: save }, text);
}
