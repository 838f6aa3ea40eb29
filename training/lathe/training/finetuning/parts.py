"""Sections of a job's report besides the offline phase: mining, and the evaluation during training."""

from collections.abc import Mapping, Sequence
from typing import Any

from lathe.training.finetuning.mining_statistics import BIN, MiningStatistics
from lathe.training.reporting.figures import draw_figures, new_panels
from lathe.training.reporting.page import Section
from lathe.training.reporting.tables import Table

QUANTILES = ("5 %", "25 %", "median", "75 %", "95 %")
"""Column headers of the quantiles in `Statistics.margin`."""


def build_mining_table(mined: Mapping[str, MiningStatistics]) -> Table:
    """Build the table of the mined negatives, one row for each source.
    Columns are queries, documents, negatives, queries with too few or no negatives, median rank and median margin.
    """
    return Table.from_records(
        (
            {
                "source": name,
                "queries": statistics.queries,
                "documents": statistics.documents,
                "negatives": statistics.kept,
                "fewer than asked": statistics.short,
                "none": statistics.without,
                "median rank": statistics.ranks[0] if statistics.ranks else None,
                "median margin": statistics.margin[2] if statistics.margin else None,
            }
            for name, statistics in mined.items()
        ),
        {"fewer than asked": ".1%", "none": ".1%", "median margin": ".3f"},
        ",",
    )


def build_rejection_table(mined: Mapping[str, MiningStatistics]) -> Table:
    """Build the table of documents that are near a query but were not taken as its negatives.
    Each source has a row, each reason a column.
    """
    reasons = dict.fromkeys((why for statistics in mined.values() for why in statistics.dropped), 0)
    return Table.from_records(
        ({"source": name} | reasons | statistics.dropped for name, statistics in mined.items()), default=","
    )


def build_margin_table(mined: Mapping[str, MiningStatistics]) -> Table:
    """Build the table of margin quantiles, one row for each source with negatives.
    A margin is the positive's score minus the negative's.
    """
    return Table.from_records(
        (
            {"source": name} | dict(zip(QUANTILES, statistics.margin, strict=True))
            for name, statistics in mined.items()
            if statistics.margin
        ),
        default=".3f",
    )


def build_example_table(mined: Mapping[str, MiningStatistics]) -> Table:
    """Build the table of one example query for each source.
    The query, each positive and each negative have a row with their score.
    """
    rows: list[list[Any]] = [["source", "score", "", "text"]]
    for name, statistics in mined.items():
        for example in statistics.examples[:1]:
            rows.append([name, "", "query", example["query"]])
            for kind in ("positives", "negatives"):
                rows += [[name, score, kind.removesuffix("s"), text] for text, score in example[kind]]
    return Table.from_rows(rows, default=".3f")


def build_mining_section(mined: Mapping[str, MiningStatistics]) -> Section:
    """Build the report's section on mined hard negatives, with totals, a histogram of margins and tables.

    It also names the sources in which more than half of the queries have fewer negatives than asked for.
    """
    total, queries = (
        sum(statistics.kept for statistics in mined.values()),
        sum(statistics.queries for statistics in mined.values()),
    )
    sentences = [f"{total:,} hard negatives were mined for {queries:,} queries of {len(mined)} sources."]
    short = [name for name, statistics in mined.items() if statistics.short > 0.5]

    if short:
        sentences.append(f"More than half of the queries have fewer than asked for: {', '.join(short)}.")

    tables = {
        "Mined": build_mining_table(mined),
        "Near documents that are no negatives, by why": build_rejection_table(mined),
        "Score of the positive less that of the negative": build_margin_table(mined),
        "Examples": build_example_table(mined),
    }
    figures = draw_figures({"Score of the positive less that of the negative": plot_margins}, mined)
    return Section("Hard negatives", sentences, figures, {title: table for title, table in tables.items() if table})


def plot_margins(mined: Mapping[str, MiningStatistics]) -> Any:
    """Plot the histogram of margins over all sources, and return the figure.
    A margin is the positive's cosine minus the negative's.
    """
    counts: dict[float, int] = {}
    for statistics in mined.values():
        for bound, count in statistics.histogram.items():
            counts[float(bound)] = counts.get(float(bound), 0) + count

    figure, (axis,) = new_panels(1, size=(6, 3))
    axis.bar(list(counts), list(counts.values()), width=BIN, align="edge")
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_xlabel("cosine to the positive less cosine to the negative")
    axis.set_ylabel("pairs of both")

    return figure


def build_curve_section(lines: Sequence[Mapping[str, Any]], kept: int) -> Section:
    """Build the report's section on the evaluation during training, with the best step, a curve and a table.

    It says so if no step was better than the base model.

    Args:
        lines: entries of the training log, at least one of them an evaluation.
        kept: step whose model is kept.
    """
    measured = {line["step"]: line["measured"] for line in lines if "measured" in line}
    metric = next(line["metric"] for line in lines if "measured" in line)
    sentences = [f"{metric} was best at step {kept:,}, which is kept: {measured[kept]:.4f}."]

    if measured.get(0, -1.0) >= measured[kept]:
        sentences.append(f"The base model had {measured[0]:.4f}: no step was better.")

    table = Table.from_rows([["step", metric], *measured.items()], {"step": ","}, ".4f")
    figures = draw_figures({f"{metric} by step": plot_curve}, measured, metric, kept)
    return Section("Measured on the way", sentences, figures, {"Measures": table})


def plot_curve(measured: Mapping[int, float], metric: str, kept: int) -> Any:
    """Plot the metric by step, with a line at the kept step, and return the figure."""
    figure, (axis,) = new_panels(1, size=(6, 3))
    axis.plot(list(measured), list(measured.values()), marker="o", markersize=3, linewidth=1.2)
    axis.axvline(kept, color="black", linewidth=0.8, linestyle="--")
    axis.set_xlabel("step")
    axis.set_ylabel(metric)
    return figure
