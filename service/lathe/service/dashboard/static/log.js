// The log of a training in charts: losses and what was measured on held-out texts, by step.

import { chart } from "./chart.js";
import { count } from "./format.js";

/** Fields of a line that are not losses. */
const OTHERS = new Set(["step", "steps", "epoch", "learning_rate", "grad_norm", "measured"]);

/** Parse the log, one JSON object per line. A last line that is not complete yet is left out. */
export function parseLog(text) {
  return text.split("\n").flatMap((line) => {
    try {
      return line.trim() ? [JSON.parse(line)] : [];
    } catch {
      return [];
    }
  });
}

/** Chart the losses and each metric of a log; an empty list without lines. */
export function trainingCharts(lines) {
  const losses = collect(lines, (line) =>
    Object.keys(line).filter((key) => !OTHERS.has(key) && Number.isFinite(line[key])),
  );
  const metrics = collect(
    lines.filter((line) => Number.isFinite(line.measured)).map((line) => ({ ...line, [line.metric]: line.measured })),
    (line) => [line.metric],
  );
  const steps = { title: "step", show: count, isTime: true, from: 0, to: lines.find((line) => line.steps)?.steps };
  const draw = (id, title, series, says, y) =>
    series.length
      ? [
          chart({
            id,
            title,
            says,
            series,
            x: steps,
            y: { title: "", show: (value) => String(Number(value.toPrecision(3))), ...y },
          }),
        ]
      : [];
  return [
    ...draw("losses", "Loss", losses, "Mean over the steps since the last point. It should fall.", { from: 0 }),
    ...draw("measured", "Held-out quality", metrics, "Measured on texts that are not trained on. It should rise.", {}),
  ];
}

/** Collect points by name: `names` lists the fields of a line that are points. */
function collect(lines, names) {
  const series = new Map();
  for (const line of lines) {
    for (const name of names(line)) {
      series.set(name, [...(series.get(name) ?? []), [line.step, line[name]]]);
    }
  }
  return [...series].map(([name, points]) => ({ name, points, kind: points.length < 12 ? "marked" : "line" }));
}
