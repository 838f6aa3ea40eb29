// The frame: which page is shown, and when its data are loaded again.

import { adaptView } from "./adapt.js";
import { getText } from "./api.js";
import { chainView } from "./chain.js";
import { chainsView } from "./chains.js";
import { compareView } from "./compare.js";
import { empty, fill, h } from "./dom.js";
import { fitView } from "./fit.js";
import { moment } from "./format.js";
import { indexView } from "./index.js";
import { indexesView } from "./indexes.js";
import { jobView } from "./job.js";
import { jobsView } from "./jobs.js";
import { wireKeys } from "./keys.js";
import { EVERY_MS, takeSample } from "./live.js";
import { migrateView } from "./migrate.js";
import { clearNotice, sentenceOf } from "./notices.js";
import { overviewView } from "./overview.js";
import { trainView } from "./train.js";
import { tryView } from "./tryit.js";

/**
 * Pages by the first part of the hash; those with an argument are tried first.
 *
 *   title(args)            heading
 *   load(args, options)    loads the data from the API
 *   draw(data, page)       returns the data as nodes
 *   every                  milliseconds until the data are loaded again while the page is visible; 0 for never
 *   enter(page)            runs once the page is shown, until `page.signal` aborts
 *   link                   address of the navigation link that the page belongs to, if it has none of its own
 */
const PAGES = {
  "": overviewView,
  chains: chainsView,
  "chains/": chainView,
  try: tryView,
  "try/": tryView,
  compare: compareView,
  "compare/": compareView,
  jobs: jobsView,
  "jobs/": jobView,
  indexes: indexesView,
  "indexes/": indexView,
  fit: fitView,
  adapt: adaptView,
  migrate: migrateView,
  train: trainView,
};

const NOWHERE = () =>
  empty(h("p", {}, "This dashboard has no page at this address."), h("a", { class: "button", href: "#/" }, "Overview"));

/** One page while it is shown. */
class Page {
  constructor(view, args) {
    this.view = view;
    this.args = args;
    this.leaving = new AbortController();
    this.signal = this.leaving.signal;
    this.place = h("div", { class: "page" }, h("p", { class: "hint" }, "Loading …"));
    this.drawn = null;
    this.data = null;
    this.loadedAt = null;
  }

  /** Load the data again and show them. `quiet`: the visitor did not ask, so no key is asked for. */
  async refresh({ quiet = false } = {}) {
    try {
      const data = await this.view.load(this.args, { quiet, signal: this.signal });
      this.say(null);
      this.loadedAt = new Date();
      this.show(data);
    } catch (error) {
      if (!this.signal.aborted) {
        this.say(error);
      }
    }
  }

  /** Show data, if they differ from those shown. */
  show(data) {
    const text = JSON.stringify(data);
    this.data = data;
    if (!this.signal.aborted && text !== this.drawn) {
      this.drawn = text;
      fill(this.place, () => this.view.draw(data, this));
    }
  }

  /** Say why the data cannot be loaded. What was shown before stays. */
  say(error) {
    document.getElementById("problem")?.remove();
    if (error === null) {
      return;
    }
    const known = this.loadedAt ? ` The page shows what it read at ${moment(this.loadedAt)}` : "";
    const retries = this.view.every
      ? ` ${known ? "and" : "The page"} tries again every few seconds.`
      : known
        ? "."
        : "";
    const sentence = error.status === 0 ? sentenceOf(error) + known + retries : sentenceOf(error);
    const again = h(
      "button",
      { type: "button", id: "again", onclick: () => this.refresh() },
      error.needsKey ? "Enter a key" : "Try again",
    );
    const said = h("p", { id: "problem", class: "notice bad", role: "alert" }, h("span", {}, sentence), again);
    if (this.drawn === null) {
      fill(this.place);
    }
    this.place.before(said);
  }

  /** Load the data again at intervals, until the page is left. */
  async keepFresh() {
    while (this.view.every && !this.signal.aborted) {
      await new Promise((resolve) => setTimeout(resolve, this.view.every));
      if (!this.signal.aborted && !document.hidden) {
        await this.refresh({ quiet: true });
      }
    }
  }
}

let current = null;

/** Show the page that the address names. */
async function open() {
  const [first = "", ...args] = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  const view = PAGES[args[0] ? `${first}/` : first] ?? null;
  current?.leaving.abort();
  const title = view ? view.title(args) : "There is no such page";
  document.title = `${title} · Lathe`;
  for (const link of document.querySelectorAll("#nav a")) {
    const here = link.getAttribute("href").replace(/^#\/?/, "") === (view?.link ?? first);
    here ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  const page = new Page(view ?? { load: async () => null, draw: () => NOWHERE(), every: 0 }, args);
  const main = document.getElementById("view");
  clearNotice();
  const moved = current !== null;
  current = page;
  fill(main, h("h1", { tabindex: "-1" }, title), page.place);
  if (moved) {
    main.querySelector("h1").focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  await page.refresh();
  if (!page.signal.aborted) {
    page.view.enter?.(page);
    await page.keepFresh();
  }
}

/** Decode a part of the address; one that is not encoded stays as it is. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Sample the metrics while the page is visible. The page itself reports a server that does not answer. */
async function watchMetrics() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS)); // first: rates over a few milliseconds are noise
    if (!document.hidden) {
      await takeSample().catch(() => null);
    }
  }
}

async function sayVersion() {
  const { version } = JSON.parse(await getText("info", { quiet: true }));
  fill(document.getElementById("version"), `Lathe ${version}`);
}

wireKeys();
addEventListener("hashchange", open);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && current?.view.every) {
    current.refresh({ quiet: true });
  }
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash is the address of a page
  document.getElementById("view").focus();
});
takeSample()
  .catch(() => null)
  .finally(() => {
    open();
    watchMetrics();
  });
sayVersion().catch(() => null);
