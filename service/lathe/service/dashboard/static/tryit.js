// A few texts embedded, and how similar they are before and after a chain.

import { get, postForHeaders } from "./api.js";
import { chart } from "./chart.js";
import { empty, fill, h, labelled, section, select } from "./dom.js";
import { exactBytes, number } from "./format.js";
import { row } from "./forms.js";
import { sentenceOf } from "./notices.js";
import { cosines, heatTable, meanOfPairs, nearest, pairsOf } from "./similarity.js";

const TEXTS_MOST = 16;
const EXAMPLE = [
  "The central bank left interest rates unchanged.",
  "Monetary policy stayed as it was this month.",
  "She planted tomatoes behind the old stone wall.",
  "Vegetables grow well in her garden.",
  "The striker scored twice before half-time.",
  "A lathe turns wood against a cutting tool.",
];

/** The page to try a chain; `#/try/NAME@2` chooses one. */
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
        h(
          "p",
          {},
          ready.length
            ? "There is no chain to try yet."
            : "No encoder is ready yet. Wait a moment and open this page again.",
        ),
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
    encoders.map((one) => [one.name, `${one.name}, ${one.dimensions} dimensions`]),
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
  const size = h("input", { id: "try-size", type: "number", min: "1", step: "1", placeholder: "all" });
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
    labelled("Texts, one per line", texts, `2 to ${TEXTS_MOST} texts.`),
    row(
      labelled("Encoder", encoder),
      labelled("Chain", chain),
      labelled("Dimensions", size, "Only nested chains serve smaller sizes."),
    ),
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
      h(
        "p",
        { class: "notice bad" },
        `Give 2 to ${TEXTS_MOST} texts, one per line. There ${texts.length === 1 ? "is 1" : `are ${texts.length}`}.`,
      ),
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
    "Similarity of the texts",
    h(
      "p",
      {},
      `The mean cosine between different texts is ${number(meanOfPairs(was), 2)} before the chain ` +
        `and ${number(meanOfPairs(is), 2)} after. ` +
        `For ${same} of ${texts.length} texts the most similar other text stays the same. ` +
        `A vector has ${widthBefore} numbers before and ${widthAfter} after ` +
        `(${exactBytes(4 * widthBefore)} → ${exactBytes(4 * widthAfter)} as float32).`,
    ),
    h(
      "div",
      { class: "pair" },
      heatTable(`Cosines before: the encoder's ${widthBefore} dimensions`, was),
      heatTable(`Cosines after: ${after.headers.get("x-chain")}, ${widthAfter} dimensions`, is, was),
    ),
    h("div", { class: "charts" }, similarityChart(was, is)),
    h(
      "p",
      { class: "hint" },
      "▲ and ▼ mark cosines that rose or fell by 0.05 or more. ",
      "The stronger the colour of a cell, the higher its cosine.",
    ),
    h(
      "ol",
      { class: "texts" },
      texts.map((text, index) =>
        h(
          "li",
          {},
          text,
          h("span", { class: "hint" }, ` most similar: ${nearBefore[index] + 1} before, ${nearAfter[index] + 1} after`),
        ),
      ),
    ),
  );
}

/** Chart the cosine of each pair of texts before the chain against that after it. */
function similarityChart(was, is) {
  const low = Math.min(0, ...was.flat(), ...is.flat());
  const axis = { show: (value) => number(value, 2), from: low, to: 1 };
  return chart({
    id: "similarity",
    title: "Cosines of all pairs of texts",
    says: "Each mark is a pair of texts. Below the line, the chain makes the pair less similar.",
    series: [
      { name: "pairs", kind: "marks", points: pairsOf(was).map((before, index) => [before, pairsOf(is)[index]]) },
      {
        name: "no change",
        points: [
          [low, low],
          [1, 1],
        ],
      },
    ],
    x: { ...axis, title: "before the chain" },
    y: { ...axis, title: "after the chain" },
  });
}
