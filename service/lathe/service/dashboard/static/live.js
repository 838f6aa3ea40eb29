// Live figures: a sample of the server's metrics every few seconds while the page is visible.

import { getText } from "./api.js";
import { growth, parseMetrics, quantile, total } from "./prometheus.js";

export const EVERY_MS = 3000;
const KEPT = 100;
const GAP_SECONDS = 30;

/** Labels of requests that bring work. Requests that only read, like this page's, are not counted. */
const WORK = { method: "POST" };

let last = null;

/** Points in time, oldest first; a figure is null if there was nothing to measure. */
export const points = [];

/** Take a sample of the metrics, and add the point between it and the sample before. */
export async function takeSample() {
  const at = performance.now() / 1000;
  const sample = parseMetrics(await getText("metrics", { quiet: true }));
  if (last !== null) {
    points.push(pointOf(last, { at, sample }));
    points.splice(0, points.length - KEPT);
  }
  last = { at, sample };
}

function pointOf(before, after) {
  const seconds = after.at - before.at;
  const watched = seconds < GAP_SECONDS; // later, an average would look like a current value
  const grown = (name, labels) => (watched ? growth(before.sample, after.sample, name, labels) : null);
  const rate = (name, labels) => {
    const by = grown(name, labels);
    return by === null ? null : by / seconds;
  };
  const latency = (share) =>
    watched ? quantile(share, before.sample, after.sample, "lathe_request_seconds", WORK) : null;
  const hits = grown("lathe_cache_hits_total");
  const misses = grown("lathe_cache_misses_total");
  const encoded = grown("lathe_texts_total");
  return {
    at: after.at,
    requests: rate("lathe_requests_total", WORK),
    encoded: encoded === null ? null : encoded / seconds,
    answered: encoded === null ? null : (encoded + (hits ?? 0)) / seconds,
    median: latency(0.5),
    slow: latency(0.95),
    waiting: total(after.sample, "lathe_queue_texts"),
    hitShare: hits + misses > 0 ? hits / (hits + misses) : null,
    cacheBytes: total(after.sample, "lathe_cache_bytes"),
    busy: rate("lathe_inference_seconds_total"),
    processes: total(after.sample, "lathe_encoder_processes"),
  };
}
