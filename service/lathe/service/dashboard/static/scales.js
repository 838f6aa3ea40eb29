// From figures to places in a picture.

/**
 * Even steps are even distances.
 * @returns {{place: function(number): number, low: number, high: number, log: boolean}}
 */
export function linear(low, high, start, end) {
  return { low, high, log: false, place: (value) => start + ((value - low) / (high - low)) * (end - start) };
}

/** Even factors are even distances; what is not above 0 stands at the low end. */
export function logarithmic(low, high, start, end) {
  const [from, to] = [Math.log10(low), Math.log10(Math.max(high, low * 10))];
  const place = (value) => start + ((Math.log10(Math.max(value, low)) - from) / (to - from)) * (end - start);
  return { low, high: 10 ** to, log: true, place };
}

/** Round figures along a scale, three to six of them. */
export function ticksOf({ low, high, log }) {
  if (log) {
    const powers = [];
    for (let power = Math.ceil(Math.log10(low) - 1e-9); power <= Math.log10(high) + 1e-9; power += 1) {
      powers.push(10 ** power);
    }
    return powers;
  }
  const rough = (high - low) / 4;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * size).find((one) => one >= rough * 0.999);
  const ticks = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step) {
    ticks.push(Math.abs(value) < step * 1e-9 ? 0 : value);
  }
  return ticks;
}
