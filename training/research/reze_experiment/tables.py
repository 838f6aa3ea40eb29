"""An experiment as tables: the paper's Table 2, its tables by task, and what was shifted."""

from collections.abc import Mapping
from typing import Any

import orjson

from training.evaluation.statistics import Interval
from training.finetuning.report import share_of
from training.finetuning.targets import GEOMETRY
from training.research.reze_experiment.findings import PROPOSED, Average, Findings, Scores, over_seeds
from training.research.reze_experiment.run import Experiment

NAMES = {
    "none": "no training",
    "ft": "FT",
    "pft": "PFT",
    "pft_whitening": "PFT + whitening",
    "pft_flow": "PFT + flow",
    "distill": "distillation",
    "reze": "REZE",
}
Rows = list[list[str]]


def named(method: str) -> str:
    """A method for readers."""
    return NAMES.get(method) or method.replace("reze", "REZE", 1)


def shown(interval: Interval | None, signed: bool = False, digits: int = 1) -> str:
    """A value with half its interval."""
    if interval is None:
        return "–"
    value = f"{interval.value:{'+' if signed else ''}.{digits}f}"
    if interval.low is None or interval.high is None:
        return value
    return f"{value} ± {(interval.high - interval.low) / 2:.{digits}f}"


def stage(rows: int) -> str:
    """A column."""
    return "before FT" if rows == 0 else f"n = {rows:,}"


def average_rows(findings: Findings, rate: float, measure: str = "score") -> Rows:
    """Table 2: methods by sizes, averages over targets."""
    found = {(a.method, a.rows): a for a in findings.averages if a.learning_rate == rate and a.measure == measure}
    columns = sorted({rows for _, rows in found})
    methods = list(dict.fromkeys(method for method, _ in found))
    header = ["method", *(f"{stage(rows)} ({targets_of(found, rows)})" for rows in columns)]
    return [header] + [
        [named(method), *(shown(found[method, rows].score) if (method, rows) in found else "–" for rows in columns)]
        for method in methods
    ]


def targets_of(found: Mapping[tuple[str, int], Average], rows: int) -> str:
    """How many targets and seeds a column is over."""
    some = [average for (_, n), average in found.items() if n == rows]
    return f"{some[0].targets} targets, {min(a.seeds for a in some)} seeds"


def target_rows(experiment: Experiment, rate: float) -> Rows:
    """Tables 5 to 9: each target by itself."""
    scores = Scores(experiment.results)
    sizes = [rows for rows in scores.rows if scores.measured(rate, rows)]
    rows: Rows = [["target", "metric", "method", *(stage(n) for n in sizes)]]
    metrics = {result.target: result.metric for result in experiment.results}
    for target in scores.tasks:
        for method in scores.methods:
            cells = []
            for n in sizes:
                values, seeds = scores.matrix(rate, n, [method], "score", [target])
                cells.append(shown(over_seeds(values[0, 0])) if seeds else "–")
            if any(cell != "–" for cell in cells):
                rows.append([target, metrics[target], named(method), *cells])
    return rows


def difference_rows(findings: Findings, rate: float) -> Rows:
    """REZE against everything else."""
    rows: Rows = [["difference in points", "measure", "targets", "rows", "points", "targets ahead", "seeds"]]
    for one in findings.differences:
        if one.learning_rate == rate:
            pair = f"{named(one.method)} − {named(one.rival)}"
            measure = one.measure.replace("_", " ")
            ahead = f"{one.better} of {one.targets}"
            rows.append([pair, measure, one.group, stage(one.rows), shown(one.points, True, 2), ahead, f"{one.seeds}"])
    return rows


def shift_rows(findings: Findings) -> Rows:
    """Figure 3 in figures, with drift and the time of a step."""
    rows: Rows = [["learning rate", "before FT", "drift, 1 − cos", "IsoScore", "seconds a step"]]
    for shift in findings.shifts:
        time = "–" if shift.seconds_per_step is None else f"{shift.seconds_per_step:.3f}"
        drift, isoscore = shown(shift.drift, digits=3), shown(shift.isoscore, digits=3)
        rows.append([f"{shift.learning_rate:g}", named(shift.method), drift, isoscore, time])
    return rows


def center_rows(experiment: Experiment, rate: float) -> Rows:
    """Table 3: the median of the source means against their mean, target by target."""
    scores, base = Scores(experiment.results), experiment.settings.regularizer.center
    arms = {base: PROPOSED} | {c: f"{PROPOSED}, {c}" for c in experiment.settings.centers if c != base}
    sizes = [rows for rows in scores.rows if PROPOSED in scores.measured(rate, rows)]
    if len(arms) < 2:
        return []
    rows: Rows = [["target", *(f"{center}, {stage(n)}" for n in sizes for center in arms)]]
    for target in scores.tasks:
        found = [scores.matrix(rate, n, [method], "score", [target]) for n in sizes for method in arms.values()]
        rows.append([target, *(shown(over_seeds(values[0, 0])) if seeds else "–" for values, seeds in found)])
    return rows


def offline_rows(experiment: Experiment) -> Rows:
    """What shrinking does to the relations, before any training."""
    rows: Rows = [["target left out", "arm", "active", "shrunk", "between sources", "in all", "mean cos(r, r̂)"]]
    for found in geometries(experiment):
        changes = [share_of(found[f"{part}_after"], found[f"{part}_before"]) for part in ("between", "total")]
        counts = [f"{found['active']} of {found['dimensions']}", f"{found['changed']}"]
        rows.append([found["target"], named(found["arm"]), *counts, *changes, f"{found['mean_cosine']:.3f}"])
    return rows


def geometries(experiment: Experiment) -> list[dict[str, Any]]:
    """The numbers of that, for each target and arm."""
    units = {unit.targets: unit for unit in experiment.units if unit.arm.regularizer}
    return [
        {"target": unit.target.name, "arm": unit.arm.method} | orjson.loads((path / GEOMETRY).read_bytes())
        for path, unit in units.items()
        if (path / GEOMETRY).is_file()
    ]


def arm_rows(experiment: Experiment) -> Rows:
    """What each regulariser was."""
    rows: Rows = [["arm", "regulariser"]]
    for arm in experiment.arms:
        written = (
            "none"
            if arm.regularizer is None
            else ", ".join(f"{name} {value}" for name, value in arm.regularizer.model_dump().items())
        )
        rows.append([named(arm.method), written])
    return rows
