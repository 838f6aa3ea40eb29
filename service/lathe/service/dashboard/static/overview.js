// The first page: warnings, running jobs, live chains with the bytes that they save, encoders, and traffic.

import { ApiError, get } from "./api.js";
import { bytesSaved, chainLink, widths } from "./chains.js";
import { valueAt } from "./certificate.js";
import { chart } from "./chart.js";
import { badge, h, section, table, warningList } from "./dom.js";
import { bytes, count, duration, exactBytes, number, percent, perSecond, plural } from "./format.js";
import { hasEnded, jobCard } from "./jobs.js";
import { askForKey } from "./keys.js";
import { EVERY_MS, points } from "./live.js";

const SHOWN_SECONDS = 300;

/** The page at `#/`. */
export const overviewView = {
  title: () => "Overview",
  every: EVERY_MS,
  async load(_args, options) {
    const [info, health] = await Promise.all([get("info", options), getHealth(options)]);
    const guarded = ["chains", "indexes", "jobs"].map((path) => getIfAllowed(path, options));
    const [chains, indexes, jobs] = await Promise.all(guarded);
    return { info, health, chains, indexes, jobs, points: [...points] };
  },
  draw(data, page) {
    const running = (data.jobs ?? []).filter((job) => !hasEnded(job));
    return [
      serverSection(data),
      data.chains === null ? keyNotice(page) : null,
      running.length ? runningSection(running, page) : null,
      data.chains === null ? null : chainSection(data),
      encoderSection(data.info),
      trafficSection(data.points),
    ];
  },
};

/** Return the health, which the server answers with status 503 while it is not ready. */
async function getHealth(options) {
  try {
    return await get("health", options);
  } catch (error) {
    if (error.status !== 503) {
      throw error;
    }
    return { status: "not ready", warnings: [error.message] };
  }
}

/** Return what `get` does, or null if it needs a key: the rest of the page is shown without one. */
async function getIfAllowed(path, options) {
  try {
    return await get(path, { ...options, quiet: true });
  } catch (error) {
    if (error instanceof ApiError && error.needsKey) {
      return null;
    }
    throw error;
  }
}

function serverSection({ info, health, chains, indexes, jobs }) {
  const warnings = health.warnings ?? [];
  const ready = info.encoders.filter((one) => one.state === "ready").length;
  const running = (jobs ?? []).filter((job) => !hasEnded(job)).length;
  const parts = [
    `${ready} of ${plural(info.encoders.length, "encoder")} ready`,
    plural(info.chains.length, "chain"),
    indexes === null ? null : plural(indexes.length, "index", "indexes"),
    jobs === null ? null : running ? `${plural(running, "job")} running` : "no job running",
  ].filter((part) => part !== null);
  const trainers =
    info.training_workers === undefined ? "" : ` and ${plural(info.training_workers ?? 0, "worker")} for trainings`;
  const shared =
    "Chains, cache and jobs are shared through Redis, " +
    `with ${plural(info.job_workers ?? 0, "worker")} for jobs${trainers}. Traffic is that of this replica.`;
  return section(
    "Server",
    h("p", {}, badge(health.status, health.status === "ready" ? "good" : "warn"), ` ${parts.join(", ")}.`),
    info.redis ? h("p", {}, shared) : null,
    warnings.length ? warningList(warnings) : h("p", { class: "hint" }, "There are no warnings."),
  );
}

function keyNotice(page) {
  const enter = async () => {
    await askForKey(
      "This server shows chains, indexes and jobs only with a key: one of LATHE_API_KEYS or an admin key.",
    );
    await page.refresh();
  };
  return h(
    "p",
    { class: "notice" },
    h("span", {}, "Chains, indexes and jobs are shown only with a key."),
    h("button", { type: "button", id: "enter-key", onclick: enter }, "Enter a key"),
  );
}

function runningSection(jobs, page) {
  return section(
    "Running jobs",
    h(
      "ul",
      { class: "list" },
      jobs.map((job) => jobCard(job, page)),
    ),
  );
}

function chainSection({ chains, indexes }) {
  const live = chains.filter((chain) => chain.live && chain.live === chain.version);
  if (live.length === 0) {
    return section("Live chains", h("p", {}, "No chain is live. ", h("a", { href: "#/fit" }, "Fit a chain"), "."));
  }
  const rows = live.map((chain) => {
    const ref = `${chain.name}@${chain.live}`;
    const found = bytesSaved(chain);
    const vectors = (indexes ?? []).filter((one) => one.chain === ref).reduce((sum, one) => sum + one.count, 0);
    return [
      chainLink(ref),
      chain.encoder?.name ?? "vectors without an encoder",
      widths(chain),
      { number: found ? `${exactBytes(found.before)} → ${exactBytes(found.after)}` : exactBytes(null) },
      { number: found ? h("strong", {}, percent(found.saved / found.before, 0)) : exactBytes(null) },
      { number: found && vectors ? `${bytes(found.saved * vectors)} in ${plural(vectors, "vector")}` : "no vectors" },
      { number: percent(chain.certificate && valueAt(chain.certificate, "recall_at_10")) },
      { number: percent(chain.certificate && valueAt(chain.certificate, "recall_at_10_rescored_4x")) },
    ];
  });
  return section(
    "Live chains",
    table(
      "Live chains",
      [
        "chain",
        "encoder",
        "dimensions",
        "bytes per vector",
        "saved",
        "saved in indexes",
        "recall@10",
        "recall@10, rescored",
      ],
      rows,
      { hideCaption: true, stack: true },
    ),
    h(
      "p",
      { class: "hint" },
      "Bytes are saved against the encoder's own vectors in float32. Recall@10 is the share of their ten nearest " +
        "neighbours that the chain's vectors find, alone and after rescoring 40 candidates.",
    ),
  );
}

function encoderSection(info) {
  const rows = info.encoders.map((one) => [
    one.name,
    [
      badge(one.state, one.state === "ready" ? "good" : "warn"),
      one.problem ? h("p", { class: "hint" }, one.problem) : null,
    ],
    one.upstream
      ? `${one.upstream.provider} (${one.upstream.protocol})`
      : one.device
        ? `${one.device}, ${one.dtype}`
        : "",
    { number: one.dimensions ?? "" },
    { number: one.max_length ? `${count(one.max_length)} tokens` : "" },
    { number: one.upstream ? "" : (one.workers ?? "") },
    sizes(one),
  ]);
  return section(
    "Encoders",
    table(
      "Encoders",
      ["encoder", "state", "runs on", "dimensions", "longest text", "processes", "chains for smaller sizes"],
      rows,
      { hideCaption: true, stack: true },
    ),
  );
}

function sizes(encoder) {
  const routes = Object.entries(encoder.size_routes ?? {}).map(([size, ref]) => [`${size}: `, chainLink(ref)]);
  const nested = encoder.nested ? [["other sizes: ", chainLink(encoder.nested)]] : [];
  const parts = [...routes, ...nested];
  return parts.length ? parts.map((part, index) => [index ? ", " : null, part]) : "none";
}

/** Live figures, with charts once a request has arrived. */
function trafficSection(seen) {
  const source = h(
    "p",
    { class: "hint" },
    "Read from ",
    h("a", { href: "metrics" }, "/metrics"),
    ` every ${EVERY_MS / 1000} s while this page is visible. Requests that only read are not counted.`,
  );
  if (!seen.some((point) => point.requests > 0)) {
    return section(
      "Traffic",
      h(
        "p",
        {},
        "No requests have arrived since this page was opened. Charts appear with the first one: ",
        h("a", { href: "#/try" }, "try a chain"),
        ".",
      ),
      source,
    );
  }
  const now = seen.at(-1);
  const tiles = [
    ["Requests", perSecond(now.requests), "that bring work"],
    ["Texts", perSecond(now.answered), "encoded or found in the cache"],
    ["Latency", duration(lastKnown(seen, "median")), `median; 95th percentile: ${duration(lastKnown(seen, "slow"))}`],
    ["Waiting", plural(now.waiting, "text"), "accepted, not answered yet"],
    ["Found in the cache", percent(lastKnown(seen, "hitShare"), 0), `the cache has ${bytes(now.cacheBytes)}`],
    ["Encoders busy", percent(busyShare(now), 0), `of the time of ${plural(now.processes, "process", "processes")}`],
  ];
  return section(
    "Traffic",
    h(
      "dl",
      { class: "tiles" },
      tiles.map(([name, figure, more]) =>
        h("div", {}, h("dt", {}, name), h("dd", { class: "value" }, figure), h("dd", { class: "hint" }, more)),
      ),
    ),
    h("div", { class: "charts" }, charts(seen)),
    source,
  );
}

function lastKnown(seen, key) {
  return seen.findLast((point) => point[key] !== null)?.[key];
}

function busyShare({ busy, processes }) {
  return typeof busy === "number" && processes ? Math.min(1, busy / processes) : null;
}

function charts(seen) {
  const end = seen.at(-1).at;
  const line = (name, key, factor = 1) => ({
    name,
    points: seen.map((point) => [point.at - end, point[key] === null ? null : factor * point[key]]),
  });
  const span = Math.min(SHOWN_SECONDS, Math.max(60, end - seen[0].at));
  const x = { title: "seconds ago", show: (value) => number(Math.abs(value), 0), from: -span, to: 0, isTime: true };
  const plain = (value) => (value >= 10 || value === 0 ? number(value, 0) : String(Number(value.toPrecision(2))));
  const draw = (id, title, series, unit, more = {}) =>
    chart({ id, title, series, x, y: { title: unit, show: plain, from: 0, ...more } });
  return [
    draw(
      "throughput",
      "Throughput",
      [line("texts answered", "answered"), line("texts encoded", "encoded"), line("requests", "requests")],
      "per second",
    ),
    draw("latency", "Latency", [line("median", "median", 1000), line("95th percentile", "slow", 1000)], "ms", {
      least: 10,
    }),
    draw("queue", "Queue", [line("waiting texts", "waiting")], "texts", { least: 4 }),
    draw("cache", "Cache", [line("texts found in it", "hitShare", 100)], "%", { to: 100 }),
  ];
}
