// Prometheus's text format, and rates and quantiles between two samples of it.

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;
const ESCAPED = { "\\n": "\n", '\\"': '"', "\\\\": "\\" };

/**
 * Parse the series of a text, by name.
 * @returns {Map<string, Array<{labels: object, value: number}>>}
 */
export function parseMetrics(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const parts = line.startsWith("#") ? null : LINE.exec(line);
    if (parts === null) {
      continue;
    }
    const [, name, written, value] = parts;
    const labels = {};
    for (const [, key, content] of (written ?? "").matchAll(LABEL)) {
      labels[key] = content.replace(/\\[n"\\]/g, (escaped) => ESCAPED[escaped]);
    }
    found.set(name, [...(found.get(name) ?? []), { labels, value: value === "+Inf" ? Infinity : Number(value) }]);
  }
  return found;
}

/** Return the series of a name with these labels. */
function series(sample, name, labels = {}) {
  const wanted = Object.entries(labels);
  return (sample.get(name) ?? []).filter((one) => wanted.every(([key, value]) => one.labels[key] === value));
}

/** Return the sum of the series of a name; 0 if there are none yet. */
export function total(sample, name, labels = {}) {
  return series(sample, name, labels).reduce((sum, one) => sum + one.value, 0);
}

/** Return how much a counter grew between two samples; null if it was reset. */
export function growth(before, after, name, labels = {}) {
  const grown = total(after, name, labels) - total(before, name, labels);
  return grown < 0 ? null : grown;
}

/**
 * Estimate a quantile of what a histogram counted between two samples, interpolated in its buckets as Prometheus does.
 * @returns {number|null} null if nothing was counted.
 */
export function quantile(share, before, after, name, labels = {}) {
  const bounds = [...new Set(series(after, `${name}_bucket`, labels).map((one) => one.labels.le))]
    .map((le) => ({ le, bound: le === "+Inf" ? Infinity : Number(le) }))
    .sort((a, b) => a.bound - b.bound);
  const held = bounds.map(({ le, bound }) => ({
    bound,
    seen: growth(before, after, `${name}_bucket`, { ...labels, le }),
  }));
  const all = held.at(-1)?.seen;
  if (!all) {
    return null;
  }
  const wanted = share * all;
  const index = held.findIndex(({ seen }) => seen >= wanted);
  const below = index === 0 ? { bound: 0, seen: 0 } : held[index - 1];
  if (held[index].bound === Infinity) {
    return below.bound;
  }
  const within = (wanted - below.seen) / (held[index].seen - below.seen);
  return below.bound + within * (held[index].bound - below.bound);
}
