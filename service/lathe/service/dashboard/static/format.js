// Numbers for people: few digits, units, and a dash for what was not measured.

const NOT_MEASURED = "–";

/** Format a number with so many digits after the point; one that would be shown as 0 gets an exponent. */
export function number(value, digits = 3) {
  if (typeof value !== "number" || !Number.isFinite(value)) {
    return NOT_MEASURED;
  }
  if (value !== 0 && Math.abs(value) < 0.5 * 10 ** -digits) {
    return value.toExponential(1);
  }
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** Format a whole number with separators of thousands. */
export function count(value) {
  return typeof value === "number" ? Math.round(value).toLocaleString("en") : NOT_MEASURED;
}

/** Format a share in per cent. */
export function percent(share, digits = 1) {
  return typeof share === "number" && Number.isFinite(share) ? `${(100 * share).toFixed(digits)} %` : NOT_MEASURED;
}

/** Format bytes in the unit that leaves up to three digits before the point. */
export function bytes(value) {
  if (typeof value !== "number") {
    return NOT_MEASURED;
  }
  const units = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  let left = value;
  while (left >= 1000 && power < units.length - 1) {
    left /= 1000;
    power += 1;
  }
  return `${power === 0 || left >= 100 ? Math.round(left) : left.toPrecision(3)} ${units[power]}`;
}

/** Format the bytes of one vector, which are few, exactly. */
export function exactBytes(value) {
  return typeof value === "number" ? `${count(value)} B` : NOT_MEASURED;
}

/** Format seconds in a readable unit. */
export function duration(seconds) {
  if (typeof seconds !== "number" || !Number.isFinite(seconds)) {
    return NOT_MEASURED;
  }
  if (seconds < 1) {
    return `${seconds >= 0.1 ? Math.round(1000 * seconds) : Number((1000 * seconds).toPrecision(2))} ms`;
  }
  if (seconds < 120) {
    return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  }
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

/** Format an amount per second. */
export function perSecond(rate) {
  if (typeof rate !== "number" || !Number.isFinite(rate)) {
    return NOT_MEASURED;
  }
  return `${rate >= 100 || rate === 0 ? Math.round(rate) : rate.toPrecision(2)} per s`;
}

/** Format a time in the visitor's time zone, with the date if it is another day. */
export function moment(iso) {
  const at = new Date(iso);
  if (!iso || Number.isNaN(at.getTime())) {
    return NOT_MEASURED;
  }
  const time = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString()} ${time}`;
}

/** Format a step as `lathe fit --steps` writes it: its kind and its dimensions. */
function step({ kind, ...parameters }) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined);
  const size = given.find(([name]) => name === "dimensions");
  return size ? `${kind}:${size[1]}` : kind;
}

/** Format the steps of a chain in their order. */
export function steps(list) {
  return (list ?? []).map(step).join(" → ") || NOT_MEASURED;
}

/** Format a number of things, with the plural of their name. */
export function plural(amount, name, names = `${name}s`) {
  return `${count(amount)} ${amount === 1 ? name : names}`;
}
