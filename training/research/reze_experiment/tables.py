"""Tables of an experiment: the paper's Table 2, its tables by task, and the drift."""

from collections.abc import Mapping
from typing import Any

import orjson

from training.evaluation.statistics import Interval
from training.finetuning.regularizers.geometry import format_share
from training.finetuning.regularizers.registry import METHODS as TRAINING_METHODS
from training.finetuning.regularizers.reze import GEOMETRY
from training.research.reze_experiment.findings import PROPOSED, Average, Findings, Scores, over_seeds
from training.research.reze_experiment.run import Experiment

NAMES = {
    "none": "no training",
    "pft_whitening": "PFT + whitening",
    "pft_flow": "PFT + flow",
} | {name: method.label for name, method in TRAINING_METHODS.items()}
"""Display name of each method."""
Rows = list[list[str]]
"""Rows of cells as text; the first row is the header."""


def named(method: str) -> str:
    """Return the display name of a method or condition."""
    return NAMES.get(method) or method.replace("reze", "REZE", 1)


def shown(interval: Interval | None, signed: bool = False, digits: int = 1) -> str:
    """Format a value with the half-width of its interval; "–" for None.

    Args:
        interval: value with its bounds.
        signed: whether positive values get a plus sign.
        digits: number of decimals.
    """
    if interval is None:
        return "–"
    value = f"{interval.value:{'+' if signed else ''}.{digits}f}"
    if interval.low is None or interval.high is None:
        return value
    return f"{value} ± {(interval.high - interval.low) / 2:.{digits}f}"


def stage(rows: int) -> str:
    """Return the column title for a number of fine-tuning rows: "before FT" for 0, else "n = ..."."""
    return "before FT" if rows == 0 else f"n = {rows:,}"


def average_rows(findings: Findings, rate: float, measure: str = "score") -> Rows:
    """Build Table 2: the average of a measure over targets, methods by numbers of fine-tuning rows.

    Args:
        findings: averages.
        rate: learning rate.
        measure: `score` or `linear_probe`.
    """
    found = {(a.method, a.rows): a for a in findings.averages if a.learning_rate == rate and a.measure == measure}
    columns = sorted({rows for _, rows in found})
    methods = list(dict.fromkeys(method for method, _ in found))
    header = ["method", *(f"{stage(rows)} ({targets_of(found, rows)})" for rows in columns)]
    return [header] + [
        [named(method), *(shown(found[method, rows].score) if (method, rows) in found else "–" for rows in columns)]
        for method in methods
    ]


def targets_of(found: Mapping[tuple[str, int], Average], rows: int) -> str:
    """Return the numbers of targets and seeds that the averages in a column are based on, as text."""
    some = [average for (_, n), average in found.items() if n == rows]
    return f"{some[0].targets} targets, {min(a.seeds for a in some)} seeds"


def target_rows(experiment: Experiment, rate: float) -> Rows:
    """Build Tables 5 to 9: the scores × 100 of each method on each target, by number of fine-tuning rows."""
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
    """Build the rows of the differences between REZE and the other methods at a learning rate, in points."""
    rows: Rows = [["difference in points", "measure", "targets", "rows", "points", "targets ahead", "seeds"]]
    for one in findings.differences:
        if one.learning_rate == rate:
            pair = f"{named(one.method)} − {named(one.rival)}"
            measure = one.measure.replace("_", " ")
            ahead = f"{one.better} of {one.targets}"
            rows.append([pair, measure, one.group, stage(one.rows), shown(one.points, True, 2), ahead, f"{one.seeds}"])
    return rows


def shift_rows(findings: Findings) -> Rows:
    """Build the rows of drift, IsoScore and seconds per step before fine-tuning, per learning rate and method."""
    rows: Rows = [["learning rate", "before FT", "drift, 1 − cos", "IsoScore", "seconds a step"]]
    for shift in findings.shifts:
        time = "–" if shift.seconds_per_step is None else f"{shift.seconds_per_step:.3f}"
        drift, isoscore = shown(shift.drift, digits=3), shown(shift.isoscore, digits=3)
        rows.append([f"{shift.learning_rate:g}", named(shift.method), drift, isoscore, time])
    return rows


def center_rows(experiment: Experiment, rate: float) -> Rows:
    """Build Table 3: REZE's scores by centre (median or mean of the source means), per target; empty for one centre."""
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
    """Build the rows of what shrinking changes in the relations before any training, per target and condition."""
    rows: Rows = [["target left out", "arm", "active", "shrunk", "between sources", "in all", "mean cos(r, r̂)"]]
    for found in geometries(experiment):
        changes = [format_share(found[f"{part}_after"], found[f"{part}_before"]) for part in ("between", "total")]
        counts = [f"{found['active']} of {found['dimensions']}", f"{found['changed']}"]
        rows.append([found["target"], named(found["arm"]), *counts, *changes, f"{found['mean_cosine']:.3f}"])
    return rows


def geometries(experiment: Experiment) -> list[dict[str, Any]]:
    """Read the stored summary of the shrinkage for each target and regularized condition, as dicts."""
    units = {unit.targets: unit for unit in experiment.units if unit.arm.regularizer.settings}
    return [
        {"target": unit.target.name, "arm": unit.arm.method} | orjson.loads((path / GEOMETRY).read_bytes())
        for path, unit in units.items()
        if (path / GEOMETRY).is_file()
    ]


def arm_rows(experiment: Experiment) -> Rows:
    """Build the rows of the regularizer settings of each condition."""
    rows: Rows = [["arm", "regulariser"]]
    for arm in experiment.arms:
        written = (
            "none"
            if arm.regularizer.settings is None
            else ", ".join(f"{name} {value}" for name, value in arm.regularizer.settings.model_dump().items())
        )
        rows.append([named(arm.method), written])
    return rows
