"""Tables of an experiment: the paper's Table 2, its tables by task, and the drift."""

from functools import partial
from typing import Any

import orjson

from lathe.training.comparison import Interval, mean_interval
from lathe.training.finetuning.regularizers.registry import METHODS as TRAINING_METHODS
from lathe.training.reporting.tables import Table
from lathe.training.reporting.text import format_half_width
from research.reze_experiment.findings import PROPOSED, Findings, Scores
from research.reze_experiment.geometry import GEOMETRY, format_share
from research.reze_experiment.run import Experiment

NAMES = {
    "none": "no training",
    "pft_whitening": "PFT + whitening",
    "pft_flow": "PFT + flow",
} | {name: method.label for name, method in TRAINING_METHODS.items()}
"""Display name of each method."""
FORMAT_SCORE, FORMAT_POINTS, FORMAT_SHIFT = (
    partial(format_half_width, spec=spec, sign=" ± ") for spec in (".1f", "+.2f", ".3f")
)
"""Formats of scores × 100, of differences in points, and of drift and IsoScore: value ± half the interval's width."""


def name_method(method: str) -> str:
    """Return the display name of a method or condition."""
    return NAMES.get(method) or method.replace("reze", "REZE", 1)


def format_stage(rows: int) -> str:
    """Return the column title for a number of fine-tuning rows: "before FT" for 0, else "n = ..."."""
    return "before FT" if rows == 0 else f"n = {rows:,}"


def build_tables(experiment: Experiment, findings: Findings) -> dict[str, Table]:
    """Build the tables of averages, differences, drift, targets and conditions, by title, without empty ones.

    Scores have a table for each learning rate.
    """
    tables = {}
    for rate in list_rates(experiment):
        at = f"learning rate {rate:g}"
        tables[f"Average over targets × 100, {at} (Table 2)"] = build_average_table(findings, rate)
        nearest = build_average_table(findings, rate, "label_accuracy")
        tables[f"Share whose nearest label is right × 100, classifications only, {at}"] = nearest
        tables[f"REZE against the others, {at}"] = _build_difference_table(findings, rate)
        tables[f"Median against mean, {at} (Table 3)"] = _build_center_table(experiment, rate)
        tables[f"By target × 100, {at} (Tables 5 to 9)"] = _build_target_table(experiment, rate)
    tables["Drift, isotropy, time (Figure 3)"] = build_shift_table(findings)
    tables["What the targets of the regulariser change"] = _build_geometry_table(experiment)
    tables["Conditions"] = _build_condition_table(experiment)
    return {title: table for title, table in tables.items() if table}


def list_rates(experiment: Experiment) -> list[float]:
    """List the learning rates that have results, in ascending order."""
    return sorted({result.learning_rate for result in experiment.results})


def build_average_table(findings: Findings, rate: float, measure: str = "score") -> Table:
    """Build Table 2: the average of a measure over targets, methods by numbers of fine-tuning rows.

    Args:
        findings: averages.
        rate: learning rate.
        measure: `score` or `label_accuracy`.
    """
    some = [one for one in findings.averages if one.learning_rate == rate and one.measure == measure]
    scores = {(one.method, one.rows): one.score for one in some}
    titles = {}
    for rows in sorted({one.rows for one in some}):
        column = [one for one in some if one.rows == rows]
        titles[rows] = f"{format_stage(rows)} ({column[0].targets} targets, {min(one.seeds for one in column)} seeds)"
    return Table.from_records(
        (
            {"method": name_method(method)} | {title: scores.get((method, rows)) for rows, title in titles.items()}
            for method in dict.fromkeys(one.method for one in some)
        ),
        default=FORMAT_SCORE,
    )


def _average_cell(scores: Scores, rate: float, rows: int, method: str, target: str) -> Interval | None:
    """Return the score × 100 of a method on a target with its interval over seeds.

    The result is None without results.
    """
    values, seeds = scores.stack_scores(rate, rows, [method], "score", [target])
    return mean_interval(values[0, 0]) if seeds else None


def _build_target_table(experiment: Experiment, rate: float) -> Table:
    """Build Tables 5 to 9: scores × 100 of each method on each target at a learning rate, by fine-tuning rows."""
    scores = Scores(experiment.results)
    metrics = {result.target: result.metric for result in experiment.results}
    records = []
    for target in scores.tasks:
        for method in scores.methods:
            cells = {
                format_stage(rows): _average_cell(scores, rate, rows, method, target)
                for of, rows in scores.cells
                if of == rate
            }
            if any(cells.values()):
                records.append({"target": target, "metric": metrics[target], "method": name_method(method)} | cells)
    return Table.from_records(records, default=FORMAT_SCORE)


def _build_difference_table(findings: Findings, rate: float) -> Table:
    """Build the table of the differences between REZE and the other methods at a learning rate, in points."""
    return Table.from_records(
        (
            {
                "difference in points": f"{name_method(one.method)} − {name_method(one.rival)}",
                "measure": one.measure.replace("_", " "),
                "targets": one.group,
                "rows": format_stage(one.rows),
                "points": one.points,
                "targets ahead": f"{one.better} of {one.targets}",
                "seeds": one.seeds,
            }
            for one in findings.differences
            if one.learning_rate == rate
        ),
        {"points": FORMAT_POINTS},
    )


def build_shift_table(findings: Findings) -> Table:
    """Build the table of drift, IsoScore and seconds per step before fine-tuning, per learning rate and method."""
    return Table.from_records(
        (
            {
                "learning rate": f"{shift.learning_rate:g}",
                "before FT": name_method(shift.method),
                "drift, 1 − cos": shift.drift,
                "IsoScore": shift.isoscore,
                "seconds a step": shift.seconds_per_step,
            }
            for shift in findings.shifts
        ),
        {"seconds a step": ".3f"},
        FORMAT_SHIFT,
    )


def _build_center_table(experiment: Experiment, rate: float) -> Table:
    """Build Table 3: REZE's scores at a learning rate per target, by centre and number of fine-tuning rows.

    The centre is the median or the mean of the source means. The table is empty for one centre.
    """
    scores, base = Scores(experiment.results), experiment.settings.regularizer.center
    methods = {base: PROPOSED} | {c: f"{PROPOSED}, {c}" for c in experiment.settings.centers if c != base}
    sizes = [rows for of, rows in scores.cells if of == rate and PROPOSED in scores.list_methods(rate, rows)]
    return Table.from_records(
        (
            {"target": target}
            | {
                f"{center}, {format_stage(rows)}": _average_cell(scores, rate, rows, method, target)
                for rows in sizes
                for center, method in methods.items()
            }
            for target in (scores.tasks if len(methods) > 1 else ())
        ),
        default=FORMAT_SCORE,
    )


def _build_geometry_table(experiment: Experiment) -> Table:
    """Build the table of what REZE's shrinkage changes before any training, per target and condition.

    It shrinks the vectors of pairs; the columns are dimensions, what is left of the variance, and mean cosine.
    """
    return Table.from_records(
        (
            {
                "target left out": found["target"],
                "condition": name_method(found["condition"]),
                "active": f"{found['active']} of {found['dimensions']}",
                "shrunk": found["changed"],
                "between sources": format_share(found["between_after"], found["between_before"]),
                "in all": format_share(found["total_after"], found["total_before"]),
                "mean cos(r, r̂)": found["mean_cosine"],
            }
            for found in read_geometries(experiment)
        ),
        {"mean cos(r, r̂)": ".3f"},
    )


def read_geometries(experiment: Experiment) -> list[dict[str, Any]]:
    """Read the stored summaries of REZE's shrinkage (dimensions, variances and cosines of pairs' vectors), as dicts.

    Each also holds the names of its target and condition. Conditions that differ only in the loss weight share a
    summary, which holds the name of one of them.
    """
    units = {unit.targets: unit for unit in experiment.units if unit.condition.regularizer.settings}
    return [
        {"target": unit.target.name, "condition": unit.condition.method} | orjson.loads((path / GEOMETRY).read_bytes())
        for path, unit in units.items()
        if (path / GEOMETRY).is_file()
    ]


def _build_condition_table(experiment: Experiment) -> Table:
    """Build the table of the regularizer settings of each condition."""
    settings = {
        name_method(condition.method): condition.regularizer.settings.model_dump()
        if condition.regularizer.settings
        else {}
        for condition in experiment.conditions
    }
    return Table.from_records(
        {"condition": name, "regulariser": ", ".join(f"{name} {value}" for name, value in values.items()) or "none"}
        for name, values in settings.items()
    )
