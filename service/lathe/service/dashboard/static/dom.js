// Elements, made one by one. What the API answers becomes text, never markup.

/**
 * Create an HTML element.
 * @param {string} tag
 * @param {object} attributes attributes by name; functions named `on…` are listeners; false and null are left out,
 *   and true is empty.
 * @param {...(Node|string|number|Array|null|false)} children null and false are left out.
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
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

/** Return a selector that finds an element again after a redraw: by its id, address or name; "" if it has none. */
function selectorOf(element) {
  const by = ["id", "href", "aria-label"].find((name) => element.getAttribute(name));
  return by ? `${element.localName}[${by}="${CSS.escape(element.getAttribute(by))}"]` : "";
}

/**
 * Replace the content of an element. Focus, scroll positions and open details with an id stay as they are.
 * @param {...(Node|string|Array|function)} children a function returns children, and may move those that are there.
 */
export function fill(place, ...children) {
  const focused = place.contains(document.activeElement) ? selectorOf(document.activeElement) : "";
  const scrolled = [...place.querySelectorAll(".scroll")]
    .filter((element) => element.scrollLeft > 0)
    .map((element) => [selectorOf(element), element.scrollLeft]);
  const opened = [...place.querySelectorAll("details[id][open]")].map((element) => element.id);
  place.replaceChildren(...flat(children.map((child) => (typeof child === "function" ? child() : child))));
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
    // The keyboard stops there only if there is more to see.
    target.tabIndex = target.scrollWidth > target.clientWidth ? 0 : -1;
  }
});

/** Create a region that scrolls sideways if its content is too wide. */
export function scroller(name, ...children) {
  const made = h("div", { class: "scroll", role: "region", "aria-label": name }, children);
  scrollers.observe(made);
  return made;
}

/**
 * Create a table.
 * @param {string} caption what it shows, also for those who do not see it.
 * @param {Array<string|Element>} head the headings.
 * @param {Array<Array>} rows cells: text, nodes, or `{number: …}` for one that must not wrap.
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

/** Create a label with its field; `hint` says what to enter. */
export function labelled(text, field, hint = null) {
  const hinted = hint ? h("span", { class: "hint", id: `${field.id}-hint` }, hint) : null;
  if (hinted) {
    field.setAttribute("aria-describedby", hinted.id);
  }
  return h("div", { class: "field" }, h("label", { for: field.id }, text), field, hinted);
}

/** Create a choice among `[value, text]` pairs. */
export function select(id, options, chosen = null, onchange = null) {
  const made = options.map(([value, text]) => h("option", { value, selected: value === chosen }, text));
  return h("select", { id, ...(onchange ? { onchange } : {}) }, made);
}

/** Create the box that a page shows while it has no content. */
export function empty(...children) {
  return h("div", { class: "empty" }, children);
}

/** Create a section with its heading. */
export function section(title, ...children) {
  return h("section", { class: "card" }, h("h2", {}, title), children);
}

/** Create a badge: a state as a coloured word. */
export function badge(text, kind = "") {
  return h("span", { class: `badge ${kind}` }, text);
}

/** Create a list of facts from `[name, content]` pairs; those without content are left out. */
export function facts(pairs) {
  const known = pairs.filter(([, fact]) => fact !== null && fact !== undefined);
  return h(
    "dl",
    { class: "facts" },
    known.map(([name, fact]) => h("div", {}, h("dt", {}, name), h("dd", {}, fact))),
  );
}

/** Create a list of warnings; null if there is none. */
export function warningList(warnings) {
  return warnings?.length
    ? h(
        "ul",
        { class: "warnings" },
        warnings.map((one) => h("li", {}, one)),
      )
    : null;
}
