// The first page: is all well, what is served, and what happens right now.

import { get } from "./api.js";
import { lineChart } from "./charts.js";
import { chainLink } from "./chains.js";
import { badge, h, section, table } from "./dom.js";
import { bytes, count, duration, number, percent, perSecond } from "./format.js";
import { EVERY_MS, points } from "./live.js";

const SHOWN_SECONDS = 300;

/** The page at `#/`. */
export const overviewView = {
  title: () => "Overview",
  every: EVERY_MS,
  async load(_args, options) {
    const [info, health] = await Promise.all([get("info", options), getHealth(options)]);
    return { info, health, points: [...points] };
  },
  draw({ info, health, points: seen }) {
    return [state(info, health), live(seen), encoderSection(info)];
  },
};

/** The health, which the server tells with 503 too while it is not ready. */
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

function state(info, health) {
  const warnings = health.warnings ?? [];
  const shared = "It shares registry, cache and jobs by a Redis; the figures below are this replica's alone.";
  const served = info.encoders.filter((one) => one.state === "ready").length;
  return section(
    "This server",
    h(
      "p",
      {},
      badge(health.status, health.status === "ready" ? "good" : "warn"),
      ` ${served} of ${plural(info.encoders.length, "encoder")} ready, ${plural(info.chains.length, "chain")}. `,
      info.redis ? `${shared} ${plural(info.job_workers ?? 0, "worker")} for its jobs.` : "It runs its jobs itself.",
    ),
    warnings.length
      ? h(
          "ul",
          { class: "warnings" },
          warnings.map((one) => h("li", {}, one)),
        )
      : null,
  );
}

function plural(amount, word) {
  return `${amount} ${word}${amount === 1 ? "" : "s"}`;
}

function encoderSection(info) {
  const rows = info.encoders.map((one) => [
    one.name,
    [
      badge(one.state, one.state === "ready" ? "good" : "warn"),
      one.problem ? h("p", { class: "hint" }, one.problem) : null,
    ],
    one.upstream ? `${one.upstream.provider} (${one.upstream.protocol})` : one.device ? `${one.device}, ${one.dtype}` : "",
    { number: one.dimensions ?? "" },
    { number: one.max_length ? `${count(one.max_length)} tokens` : "" },
    { number: one.upstream ? "" : (one.workers ?? "") },
    sizes(one),
  ]);
  return section(
    "Encoders",
    table(
      "Encoders",
      ["encoder", "state", "runs on", "dimensions", "longest text", "processes", "sizes answered by"],
      rows,
      { hideCaption: true, stack: true },
    ),
    h(
      "p",
      { class: "hint" },
      "A request that asks for a size is answered by the chain that has its place; ",
      "without one, the vectors are the encoder's own.",
    ),
  );
}

function sizes(encoder) {
  const routes = Object.entries(encoder.size_routes ?? {}).map(([size, ref]) => [`${size}: `, chainLink(ref), " "]);
  const nested = encoder.nested ? ["smaller: ", chainLink(encoder.nested)] : null;
  return routes.length || nested ? [routes, nested] : "no chain yet";
}

function live(seen) {
  const now = seen.at(-1) ?? {};
  const tiles = [
    ["Requests", perSecond(now.requests), "that bring work"],
    ["Texts answered", perSecond(now.answered), "encoded or from the cache"],
    ["Latency", duration(lastKnown(seen, "median")), `the slowest 5 %: ${duration(lastKnown(seen, "slow"))}`],
    ["Waiting", `${count(now.waiting)} texts`, "accepted, not yet answered"],
    ["From the cache", percent(lastKnown(seen, "hitShare"), 0), `holds ${bytes(now.cacheBytes)}`],
    ["Encoders busy", percent(busyShare(now), 0), `of ${count(now.processes)} processes' time`],
  ];
  return section(
    "Right now",
    h(
      "dl",
      { class: "tiles" },
      tiles.map(([name, value, more]) =>
        h("div", {}, h("dt", {}, name), h("dd", { class: "value" }, value), h("dd", { class: "hint" }, more)),
      ),
    ),
    h("div", { class: "charts" }, charts(seen)),
    h(
      "p",
      { class: "hint" },
      "Taken from ",
      h("a", { href: "metrics" }, "/metrics"),
      ` every ${EVERY_MS / 1000} s while this page is looked at; requests that only read are not counted. `,
      seen.some((point) => point.requests > 0)
        ? null
        : ["Nothing was asked of it since this page was opened: ", h("a", { href: "#/try" }, "try a chain"), "."],
    ),
  );
}

function lastKnown(seen, key) {
  return seen.findLast((point) => point[key] !== null)?.[key];
}

function busyShare({ busy, processes }) {
  return typeof busy === "number" && processes ? Math.min(1, busy / processes) : null;
}

function charts(seen) {
  const end = seen.at(-1)?.at ?? 0;
  const line = (name, key, factor = 1) => ({
    name,
    points: seen.map((point) => [point.at - end, point[key] === null ? null : factor * point[key]]),
  });
  const span = Math.min(SHOWN_SECONDS, Math.max(60, end - (seen[0]?.at ?? 0)));
  const x = { title: "seconds ago", show: (value) => number(Math.abs(value), 0), from: -span, to: 0 };
  const plain = (value) => (value >= 1 || value === 0 ? number(value, 0) : String(Number(value.toPrecision(1))));
  const chart = (title, series, unit, more = {}) =>
    lineChart({
      title,
      series,
      x,
      y: { title: unit, show: plain, from: 0, ...more },
      height: 170,
    });
  return [
    chart(
      "Throughput",
      [line("texts answered", "answered"), line("texts encoded", "encoded"), line("requests", "requests")],
      "a second",
    ),
    chart("Latency", [line("median", "median", 1000), line("95th percentile", "slow", 1000)], "ms", { least: 10 }),
    chart("Queue", [line("texts waiting", "waiting")], "texts", { least: 4 }),
    chart("Cache", [line("share of texts found in it", "hitShare", 100)], "%", { to: 100 }),
  ];
}
