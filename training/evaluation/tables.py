"""Tables of an evaluation, as rows of text cells with the header first."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from training.evaluation.comparison import Tally
from training.evaluation.findings import Findings
from training.evaluation.grid import Grid, family_of
from training.evaluation.methods import CONTROL
from training.evaluation.run import EncoderResult, Results
from training.evaluation.statistics import Interval
from training.evaluation.words import bounded, percent, share

Rows = list[list[str]]
EFFECTS_MOST = 50
"""Maximum number of large effects in the table; all are in the JSON."""


def tables(results: Results, findings: Findings) -> dict[str, Rows]:
    """Build every table for which there are findings; return rows of cells by title, header first."""
    found = {"Raw vectors: mean score × 100 by type of task": score_rows(results)}
    if findings.cells:
        found["Differences to raw vectors, in points"] = difference_rows(results, findings)
    if findings.families:
        found["By family of tasks: paired t"] = family_table(findings)
        found["By encoder, method and family of tasks"] = cell_table(findings)
    if any(one for correlations in findings.norm_correlations.values() for one in correlations.values()):
        found["Gain and ‖μ‖ over encoders"] = norm_table(findings)
    if findings.norm_bins:
        found["Mean t of R2 by ‖μ‖"] = bin_table(findings)
    if findings.large_effects:
        found["Large effects (more than .1 and 2 %) by encoder"] = effect_summary(findings, "encoder")
        found["Large effects by task"] = effect_summary(findings, "task")
        found["The largest effects"] = effect_table(findings)
    if findings.retentions:
        found["Share of the score kept, per cent"] = retention_rows(findings)
        found["By type of task, and ahead of PCA, points of retention"] = type_table(findings)
    if findings.cross_lingual:
        found["Retention in other languages less that in English"] = language_table(findings)
    found["Every score × 100"] = score_table(results)
    return found


def score_rows(results: Results) -> Rows:
    """Build the table of the raw vectors' mean score by type, over the tasks that all encoders completed."""
    grid = Grid(results)
    tasks = grid.common({name: [] for name in grid.encoders})
    types = grid.types(tasks)
    rows = [["encoder", "‖μ‖", "mean", *(f"{kind} ({len(places)})" for kind, places in types.items())]]
    for name, result in grid.encoders.items():
        means = [mean_of(grid, name, [tasks[place] for place in places]) for places in types.values()]
        rows.append([name, norm_of(result), mean_of(grid, name, tasks), *means])
    return rows


def norm_of(result: EncoderResult) -> str:
    """Format an encoder's ‖μ‖, with the published value if the suite states one."""
    published = result.member.published_mean_norm
    ours = "–" if result.mean_norm is None else f"{result.mean_norm:.3f}"
    return ours if published is None else f"{ours} (published {published:.3f})"


def mean_of(grid: Grid, encoder: str, tasks: Sequence[str]) -> str:
    """Format the mean raw score × 100 over tasks, or a dash without tasks."""
    return f"{100 * float(np.mean(grid.control(encoder, tasks))):.2f}" if tasks else "–"


def difference_rows(results: Results, findings: Findings) -> Rows:
    """Build the table of differences to raw vectors in points: encoders by methods, and a last row over encoders."""
    rows = [["encoder", "‖μ‖", "tasks", *findings.labels]]
    for result in results.encoders:
        cells = {cell.label: cell for cell in findings.cells if cell.encoder == result.member.name}
        if cells:
            norm = "–" if result.mean_norm is None else f"{result.mean_norm:.2f}"
            tasks = str(max(cell.tasks for cell in cells.values()))
            shown = [half(cells[label].difference) if label in cells else "–" for label in findings.labels]
            rows.append([result.member.name, norm, tasks, *shown])
    if len(rows) > 2:
        rows.append(
            [
                "all",
                "",
                "",
                *(half(findings.overall[label]) if label in findings.overall else "–" for label in findings.labels),
            ]
        )
    return rows


def retention_rows(findings: Findings) -> Rows:
    """Build the table of the retained share of the score: reducers by share of the dimensions."""
    shares = sorted({one.share for one in findings.retentions}, reverse=True)
    rows = [["reducer", *(share(value) for value in shares)]]
    for label in dict.fromkeys(one.label for one in findings.retentions):
        found = {one.share: percent(one.mean) for one in findings.retentions if one.label == label}
        rows.append([label, *(found.get(value, "–") for value in shares)])
    return rows


def family_table(findings: Findings) -> Rows:
    """Build the table of mean t, wins, ties and losses by family of tasks, also without each family of encoders."""
    kin = list(dict.fromkeys(name for row in findings.families for name in row.without))
    rows = [["method", "family", "encoders", "mean t", "W/T/L", *(f"without {name}" for name in kin)]]
    for row in findings.families:
        without = [tallied(row.without[name]) if name in row.without else "–" for name in kin]
        rows.append([row.label, row.family, str(row.all.encoders), *tallied(row.all).split("; "), *without])
    return rows


def tallied(one: Tally) -> str:
    """Format the mean t with wins, ties and losses, as "+1.23; 4/5/6"."""
    return f"{one.mean_t:+.2f}; {one.wins}/{one.ties}/{one.losses}"


def cell_table(findings: Findings) -> Rows:
    """Build the table of paired tests by encoder, method and family of tasks."""
    rows = [["encoder", "method", "family", "tasks", "difference", "t", "p", "σ_cell"]]
    for one in findings.cells:
        for family, test in one.families.items():
            t, sigma = ("–" if value is None else f"{value:+.2f}" for value in (test.t, test.sigma_cell))
            p = "–" if test.p is None else f"{test.p:.3f}"
            rows.append([one.encoder, one.label, family, str(test.n), f"{test.mean:+.2f}", t, p, sigma])
    return rows


def norm_table(findings: Findings) -> Rows:
    """Build the table of correlations between each method's gain and ‖μ‖."""
    rows = [["method", "what", "encoders", "r", "ρ"]]
    for label, found in findings.norm_correlations.items():
        for what, one in found.items():
            if one is not None:
                rows.append([label, what, str(one.n), bounded(one.pearson), bounded(one.spearman)])
    return rows


def bin_table(findings: Findings) -> Rows:
    """Build the table of the mean t of R2 by interval of ‖μ‖."""
    header = list(findings.norm_bins[0])
    return [header, *([cell(row[name]) for name in header] for row in findings.norm_bins)]


def effect_table(findings: Findings) -> Rows:
    """Build the table of the largest effects, at most `EFFECTS_MOST`."""
    rows = [["method", "encoder", "task", "raw", "difference"]]
    for effect in findings.large_effects[:EFFECTS_MOST]:
        rows.append([effect.label, effect.encoder, effect.task, f"{effect.control:.3f}", f"{effect.difference:+.3f}"])
    return rows


def effect_summary(findings: Findings, by: Literal["encoder", "task"]) -> Rows:
    """Build the table of large effects by method and encoder, or task: count, mean and largest, upward and downward.

    Values are scores, not points (Tables 8 and 9 of the mean-bias paper).
    """
    rows = [["method", by, "up", "mean up", "most up", "down", "mean down", "most down"]]
    groups: dict[tuple[str, str], list[float]] = {}
    for effect in findings.large_effects:
        groups.setdefault((effect.label, getattr(effect, by)), []).append(effect.difference)
    for (label, name), differences in sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1]))):
        cells = []
        for sign in (1, -1):
            some = [difference for difference in differences if sign * difference > 0]
            most = max(some, key=abs, default=None)
            cells += [str(len(some)), *(["–", "–"] if most is None else [f"{np.mean(some):+.3f}", f"{most:+.3f}"])]
        rows.append([label, name, *cells])
    return rows


def type_table(findings: Findings) -> Rows:
    """Build the table of the retained share by type of task, with its difference to that of PCA in points."""
    kinds = list(dict.fromkeys(kind for one in findings.retentions for kind in one.types))
    rows = [["reducer", "dimensions", *kinds]]
    for one in findings.retentions:
        cells = []
        for kind in kinds:
            shown = percent(one.types[kind]) if kind in one.types else "–"
            ahead = one.ahead.get(kind)
            cells.append(shown if ahead is None or one.label == "pca" else f"{shown}; {100 * ahead.value:+.1f}")
        rows.append([one.label, share(one.share), *cells])
    return rows


def language_table(findings: Findings) -> Rows:
    """Build the table of retention in other languages minus that in English, by encoder, reducer and size."""
    languages = list(dict.fromkeys(one.language for one in findings.cross_lingual))
    rows = [["encoder", "reducer", "size", "data set", *languages]]
    for key in dict.fromkeys((o.encoder, o.label, o.size, o.task) for o in findings.cross_lingual):
        some = {o.language: o for o in findings.cross_lingual if (o.encoder, o.label, o.size, o.task) == key}
        found = [f"{some[name].against_english:+.3f}" if name in some else "–" for name in languages]
        rows.append([key[0], key[1], str(key[2]), key[3], *found])
    return rows


def score_table(results: Results) -> Rows:
    """Build the table of all scores × 100: a row for each task and encoder, a column for each method."""
    rows = rows_of(results)
    methods = list(dict.fromkeys(row["method"] for row in rows))
    by_cell: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in rows:
        by_cell.setdefault((row["task"], row["type"], row["encoder"]), {})[row["method"]] = row["score"]
    table = [["task", "type", "encoder", *methods]]
    for key, scores in sorted(by_cell.items()):
        table.append([*key, *("–" if scores.get(m) is None else f"{100 * scores[m]:.2f}" for m in methods)])
    return table


def cell(value: float | int | str | None) -> str:
    """Format a value as text: a float with sign and two decimals, None as a dash."""
    return "–" if value is None else f"{value:+.2f}" if isinstance(value, float) else str(value)


def half(interval: Interval) -> str:
    """Format a difference with half the width of its interval, as "+1.23 ±0.45"."""
    if interval.low is None or interval.high is None:
        return f"{interval.value:+.2f}"
    return f"{interval.value:+.2f} ±{(interval.high - interval.low) / 2:.2f}"


def rows_of(results: Results, metrics: bool = False) -> list[dict[str, Any]]:
    """Return a dict for each score with names, raw score, difference and retention, sorted by encoder and task.

    Args:
        results: results of an evaluation.
        metrics: whether to add all metrics of mteb.
    """
    grid = Grid(results)
    rows = []
    for score in results.scores:
        result, task = grid.encoders[score.encoder], grid.tasks.get(score.task)
        method = result.methods.get(score.method)
        control = grid.values.get((result.member.name, CONTROL, score.task))
        both = None if score.score is None or control is None else (score.score, control)
        rows.append(
            {
                "task": score.task,
                "type": task.type if task else "",
                "family": family_of(task.type) if task else "",
                "language": task.language if task else "",
                "metric": task.main_score if task else "",
                "encoder": result.member.name,
                "mean_norm": result.mean_norm,
                "method": score.method,
                "group": method.group if method else "",
                "label": method.label if method else "",
                "size": method.size if method else None,
                "score": score.score,
                "control": control,
                "difference_points": None if both is None else 100 * (both[0] - both[1]),
                "retention": both[0] / both[1] if both and both[1] else None,
                "seconds": score.seconds,
                "error": score.error,
            }
            | ({"metrics": score.metrics} if metrics else {})
        )
    return sorted(rows, key=lambda row: (row["encoder"], row["task"]))


def problem_lines(results: Results) -> Iterator[str]:
    """Yield a line for each problem: unusable encoders, tasks and methods, left-out rows, failed scores."""
    yield from (f"an encoder was left out: {problem}" for problem in results.problems)
    for task in results.tasks:
        if task.error:
            yield f"{task.task} was not evaluated: {task.error}"
        yield from (f"{task.task}: {warning}" for warning in task.warnings)
    for result in results.encoders:
        yield from (f"{result.member.name}: {name} was not compared: {why}" for name, why in result.problems.items())
    failed: dict[tuple[str, str], list[str]] = {}
    for score in results.scores:
        if score.error:
            failed.setdefault((score.task, score.error), []).append(f"{score.encoder} with {score.method}")
    for (name, error), cells in failed.items():
        more = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
        yield f"{name} on {cells[0]}{more} failed: {error}"
