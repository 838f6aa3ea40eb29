// A few texts embedded, and how alike they are before and after a chain.

import { get, postForHeaders } from "./api.js";
import { empty, fill, h, labelled, section, select } from "./dom.js";
import { bytes, number } from "./format.js";
import { sentenceOf } from "./notices.js";
import { cosines, heatTable, meanOfPairs, nearest } from "./similarity.js";

const TEXTS_MOST = 16;
const EXAMPLE = [
  "The central bank left interest rates unchanged.",
  "Monetary policy stayed as it was this month.",
  "She planted tomatoes behind the old stone wall.",
  "Vegetables grow well in her garden.",
  "The striker scored twice before half-time.",
  "A lathe turns wood against a cutting tool.",
];

/** The page to try a chain: `#/try/NAME@2` chooses that one. */
export const tryView = {
  title: () => "Try it",
  every: 0,
  async load(_args, options) {
    const [encoders, chains] = await Promise.all([get("encoders", options), get("chains", options)]);
    return { encoders, chains };
  },
  draw({ encoders, chains }, page) {
    const ready = encoders.filter((one) => one.state === "ready");
    if (ready.length === 0 || chains.length === 0) {
      return empty(
        h("p", {}, ready.length ? "There is no chain to try." : "No encoder is ready yet; wait a moment."),
        ready.length ? h("a", { class: "button", href: "#/fit" }, "Fit a chain") : null,
      );
    }
    return [tryForm(ready, chains, page), h("div", { id: "try-result", "aria-live": "polite" })];
  },
};

function tryForm(encoders, chains, page) {
  const texts = h("textarea", { id: "try-texts", rows: "7", spellcheck: "false" }, EXAMPLE.join("\n"));
  const encoder = select(
    "try-encoder",
    encoders.map((one) => [one.name, `${one.name}, ${one.dimensions} wide`]),
  );
  const versions = chains.flatMap((chain) =>
    chain.versions
      .filter((one) => one.state === "ready")
      .map((one) => ({
        ref: `${chain.name}@${one.version}`,
        live: one.version === chain.live,
        ...one,
      })),
  );
  const asked = page.args[0];
  const named = versions.find((one) => one.ref === asked || (one.live && one.ref.startsWith(`${asked}@`)));
  const wanted = named?.ref ?? versions.find((one) => one.live && one.nested)?.ref;
  const size = h("input", { id: "try-size", type: "number", min: "1", step: "1", placeholder: "its own" });
  const chain = select(
    "try-chain",
    versions.map((one) => [one.ref, `${one.ref}${one.live ? ", live" : ""}`]),
    wanted,
    () => limit(),
  );
  const limit = () => {
    const { nested, output_dimensions: own } = versions.find((one) => one.ref === chain.value);
    size.disabled = !nested;
    size.max = own ?? "";
    size.value = "";
  };
  limit();
  const submit = async (event) => {
    event.preventDefault();
    await show(texts.value, encoder.value, chain.value, size.value === "" ? null : Number(size.value));
  };
  return h(
    "form",
    { class: "card", id: "try-form", onsubmit: submit },
    labelled("Texts, one a line", texts, `2 to ${TEXTS_MOST} of them`),
    h("div", { class: "row" }, labelled("Encoder", encoder), labelled("Chain", chain), labelled("Dimensions", size)),
    h("p", { class: "buttons" }, h("button", { type: "submit", class: "main" }, "Embed and compare")),
  );
}

async function show(written, encoder, chain, dimensions) {
  const place = document.getElementById("try-result");
  const texts = written
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "");
  if (texts.length < 2 || texts.length > TEXTS_MOST) {
    fill(
      place,
      h("p", { class: "notice bad" }, `Give 2 to ${TEXTS_MOST} texts, one a line; there are ${texts.length}.`),
    );
    return;
  }
  try {
    const [before, after] = await Promise.all([
      postForHeaders("embed", { inputs: texts, model: encoder, chain: "none" }),
      postForHeaders("embed", { inputs: texts, model: encoder, chain, dimensions }),
    ]);
    fill(place, result(texts, before, after));
  } catch (error) {
    fill(place, h("p", { class: "notice bad" }, sentenceOf(error)));
  }
}

function result(texts, before, after) {
  const [was, is] = [before, after].map(({ content }) => cosines(content));
  const [widthBefore, widthAfter] = [before, after].map(({ content }) => content[0].length);
  const [nearBefore, nearAfter] = [nearest(was), nearest(is)];
  const same = nearBefore.filter((one, index) => one === nearAfter[index]).length;
  return section(
    "How alike the texts are",
    h(
      "p",
      {},
      `Different texts have a mean cosine of ${number(meanOfPairs(was), 2)} before ` +
        `and ${number(meanOfPairs(is), 2)} after. ` +
        `The nearest other text stays the same for ${same} of ${texts.length}. ` +
        `A vector has ${widthBefore} numbers before and ${widthAfter} after ` +
        `(${bytes(4 * widthBefore)} → ${bytes(4 * widthAfter)} as float32).`,
    ),
    h(
      "div",
      { class: "pair" },
      heatTable(`Cosines before: the encoder's ${widthBefore} dimensions`, was),
      heatTable(`Cosines after: ${after.headers.get("x-chain")}, ${widthAfter} dimensions`, is, was),
    ),
    h(
      "p",
      { class: "hint" },
      "▲ and ▼: by how much a cosine rose or fell, from .05 on. The fuller a cell's colour, the higher its cosine.",
    ),
    h(
      "ol",
      { class: "texts" },
      texts.map((text, index) =>
        h(
          "li",
          {},
          text,
          h("span", { class: "hint" }, ` nearest: ${nearBefore[index] + 1} before, ${nearAfter[index] + 1} after`),
        ),
      ),
    ),
  );
}
