"""Sections of a job's report besides the offline phase: mining, evaluation during training and after it."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt

from training.finetuning.afterwards import Compared, category_rows, task_rows, verdicts
from training.finetuning.mining_statistics import BIN, Statistics
from training.reporting.figures import STYLE, to_svg
from training.reporting.page import Section
from training.reporting.tables import Table

QUANTILES = ("5 %", "25 %", "median", "75 %", "95 %")
"""Column headers of the quantiles in `Statistics.margin`."""


def mining_rows(mined: Mapping[str, Statistics]) -> list[list[str]]:
    """Build the table of what was mined of each source as rows of text, the header first."""
    header = ["source", "queries", "documents", "negatives", "fewer than asked", "none", "median rank", "median margin"]
    return [header] + [
        [
            name,
            f"{one.queries:,}",
            f"{one.documents:,}",
            f"{one.kept:,}",
            f"{one.short:.1%}",
            f"{one.without:.1%}",
            f"{one.ranks[0]:,}" if one.ranks else "–",
            f"{one.margin[2]:.3f}" if one.margin else "–",
        ]
        for name, one in mined.items()
    ]


def dropped_rows(mined: Mapping[str, Statistics]) -> list[list[str]]:
    """Build the table of how many near documents were rejected, by source and reason, the header first."""
    reasons = list(dict.fromkeys(why for one in mined.values() for why in one.dropped))
    return [["source", *reasons]] + [
        [name, *(f"{one.dropped.get(why, 0):,}" for why in reasons)] for name, one in mined.items()
    ]


def margin_rows(mined: Mapping[str, Statistics]) -> list[list[str]]:
    """Build the table of each source's margin quantiles, the header first; sources without negatives are left out."""
    return [["source", *QUANTILES]] + [
        [name, *(f"{value:.3f}" for value in one.margin)] for name, one in mined.items() if one.margin
    ]


def example_rows(mined: Mapping[str, Statistics]) -> list[list[str]]:
    """Build the table of one example query of each source, with positives, negatives and scores, the header first."""
    rows = [["source", "score", "", "text"]]
    for name, one in mined.items():
        for found in one.examples[:1]:
            rows.append([name, "", "query", found["query"]])
            for kind in ("positives", "negatives"):
                rows += [[name, f"{score:.3f}", kind.removesuffix("s"), text] for text, score in found[kind]]
    return rows


def mining_part(mined: Mapping[str, Statistics]) -> Section:
    """Build the report's section on hard negatives: totals, a histogram of margins, and tables."""
    total, queries = sum(one.kept for one in mined.values()), sum(one.queries for one in mined.values())
    said = [f"{total:,} hard negatives were mined for {queries:,} queries of {len(mined)} sources."]
    short = [name for name, one in mined.items() if one.short > 0.5]
    if short:
        said.append(f"More than half of the queries have fewer than asked for: {', '.join(short)}.")
    tables = {
        "Mined": Table.from_rows(mining_rows(mined)),
        "Near documents that are no negatives, by why": Table.from_rows(dropped_rows(mined)),
        "Score of the positive less that of the negative": Table.from_rows(margin_rows(mined)),
        "Examples": Table.from_rows(example_rows(mined)),
    }
    with plt.rc_context(STYLE):
        drawing = to_svg(margins(mined))
    return Section("Hard negatives", said, {"Score of the positive less that of the negative": drawing}, tables)


def margins(mined: Mapping[str, Statistics]) -> Any:
    """Plot the histogram of margins, positive's cosine minus negative's, over all sources, and return the figure."""
    counts: dict[float, int] = {}
    for one in mined.values():
        for bound, count in one.histogram.items():
            counts[float(bound)] = counts.get(float(bound), 0) + count
    figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
    axis.bar(list(counts), list(counts.values()), width=BIN, align="edge")
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_xlabel("cosine to the positive less cosine to the negative")
    axis.set_ylabel("pairs of both")
    return figure


def curve_part(lines: Sequence[Mapping[str, Any]], kept: int) -> Section:
    """Build the report's section on the evaluation during training: the best step, a curve and a table.

    Args:
        lines: entries of the training log.
        kept: step whose model is kept.
    """
    measured = {line["step"]: line["measured"] for line in lines if "measured" in line}
    metric = next(line["metric"] for line in lines if "measured" in line)
    said = [f"{metric} was best at step {kept:,}, which is kept: {measured[kept]:.4f}."]
    if measured.get(0, -1.0) >= measured[kept]:
        said.append(f"The base model had {measured[0]:.4f}: no step was better.")
    rows = [["step", metric], *([f"{step:,}", f"{value:.4f}"] for step, value in measured.items())]
    with plt.rc_context(STYLE):
        drawing = to_svg(curve(measured, metric, kept))
    return Section("Measured on the way", said, {f"{metric} by step": drawing}, {"Measures": Table.from_rows(rows)})


def curve(measured: Mapping[int, float], metric: str, kept: int) -> Any:
    """Plot the metric by step, with a line at the kept step, and return the figure."""
    figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
    axis.plot(list(measured), list(measured.values()), marker="o", markersize=3, linewidth=1.2)
    axis.axvline(kept, color="black", linewidth=0.8, linestyle="--")
    axis.set_xlabel("step")
    axis.set_ylabel(metric)
    return figure


def comparison_part(found: Mapping[str, Compared]) -> Section:
    """Build the report's section on the post-training evaluation: sentences, and tables by category and by task."""
    tables = {
        "By category: paired t-tests over tasks, p by Holm within a suite": Table.from_rows(category_rows(found)),
        "By task": Table.from_rows(task_rows(found)),
    }
    return Section("Against the base model", verdicts(found), {}, tables)
