// Files of the API saved by the browser: fetched, for a link could carry no key.

import { getFile } from "./api.js";
import { h } from "./dom.js";
import { notice, sentenceOf } from "./notices.js";

/** A button that saves what is at a path under a name. */
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
