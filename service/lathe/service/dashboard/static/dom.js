// Elements, made one by one: what the API answers becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

/**
 * An HTML element.
 * @param {string} tag
 * @param {object} attributes `class` and the like; `on…` are listeners; false and null are left out, true is empty.
 * @param {...(Node|string|number|Array|null|false)} children nothing is made of null and false.
 */
export function h(tag, attributes = {}, ...children) {
  return finished(document.createElement(tag), attributes, children);
}

/** An SVG element, as `h`. */
export function svg(tag, attributes = {}, ...children) {
  return finished(document.createElementNS(SVG, tag), attributes, children);
}

function finished(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      element.addEventListener(name.slice(2), value);
    } else if (name === "value") {
      element.value = value;
    } else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...flat(children));
  return element;
}

function flat(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

/** Finds an element again that was made anew: by its id, its address or its name; "" if it has none. */
function selectorOf(element) {
  const by = ["id", "href", "aria-label"].find((name) => element.getAttribute(name));
  return by ? `${element.localName}[${by}="${CSS.escape(element.getAttribute(by))}"]` : "";
}

/** Replace what is in a place; the focus, how far things are scrolled, and what is folded out by its id, stay. */
export function fill(place, ...children) {
  const focused = place.contains(document.activeElement) ? selectorOf(document.activeElement) : "";
  const scrolled = [...place.querySelectorAll(".scroll")]
    .filter((element) => element.scrollLeft > 0)
    .map((element) => [selectorOf(element), element.scrollLeft]);
  const opened = [...place.querySelectorAll("details[id][open]")].map((element) => element.id);
  place.replaceChildren(...flat(children));
  for (const id of opened) {
    document.getElementById(id)?.setAttribute("open", "");
  }
  for (const [selector, left] of scrolled) {
    place.querySelector(selector)?.scrollTo({ left, behavior: "instant" });
  }
  if (focused) {
    place.querySelector(focused)?.focus({ preventScroll: true });
  }
}

const scrollers = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    // a stop for the keyboard where there is more to see
    target.tabIndex = target.scrollWidth > target.clientWidth ? 0 : -1;
  }
});

/** A place that scrolls by itself where what is in it is too wide. */
export function scroller(name, ...children) {
  const made = h("div", { class: "scroll", role: "region", "aria-label": name }, children);
  scrollers.observe(made);
  return made;
}

/**
 * A table.
 * @param {string} caption what it shows, also for those who do not see it.
 * @param {Array<string|Element>} head the headings.
 * @param {Array<Array>} rows cells: text, nodes, or `{number: …}` for one that is not to break.
 * @param {object} options `hideCaption`; `stack` puts the cells of a row below each other on a narrow screen.
 */
export function table(caption, head, rows, { hideCaption = false, stack = false } = {}) {
  const names = head.map((name) => (typeof name === "string" ? name : name.textContent));
  const cell = (content, index) => {
    const number = content !== null && typeof content === "object" && "number" in content;
    const inside = number ? content.number : content;
    const attributes = { class: number ? "number" : null, "data-name": stack && index > 0 ? names[index] : null };
    return index === 0 ? h("th", { scope: "row", ...attributes }, inside) : h("td", attributes, inside);
  };
  return scroller(
    caption,
    h(
      "table",
      { class: stack ? "stack" : null },
      h("caption", { class: hideCaption ? "unseen" : null }, caption),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          head.map((name) => (name === "" ? h("td") : h("th", { scope: "col" }, name))),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row) => h("tr", {}, row.map(cell))),
      ),
    ),
  );
}

/** A label with its field; `hint` says what is wanted. */
export function labelled(text, field, hint = null) {
  const hinted = hint ? h("span", { class: "hint", id: `${field.id}-hint` }, hint) : null;
  if (hinted) {
    field.setAttribute("aria-describedby", hinted.id);
  }
  return h("div", { class: "field" }, h("label", { for: field.id }, text), field, hinted);
}

/** A choice among `[value, text]` pairs. */
export function select(id, options, chosen = null, onchange = null) {
  const made = options.map(([value, text]) => h("option", { value, selected: value === chosen }, text));
  return h("select", { id, ...(onchange ? { onchange } : {}) }, made);
}

/** What to say, and do, where there is nothing yet. */
export function empty(...children) {
  return h("div", { class: "empty" }, children);
}

/** A section with its heading. */
export function section(title, ...children) {
  return h("section", { class: "card" }, h("h2", {}, title), children);
}

/** A short word of state, as text with a colour. */
export function badge(text, kind = "") {
  return h("span", { class: `badge ${kind}` }, text);
}
