"""Report on what a job is trained on and pulled towards: a CSV table, an HTML page, sentences for the terminal."""

import csv
import io
from collections.abc import Sequence

from training.finetuning.mixture import Lengths, Mixture, SourceReport
from training.finetuning.regularizers.regularizer import Regularizer, RegularizerReport
from training.reporting.page import Section, render_page
from training.reporting.tables import Table

REFERENCE = "https://arxiv.org/abs/2604.17257"
"""Address of the REZE paper."""
COUNTS = ("rows", "pairs", "kept", "shared with the target", "also in others", "negatives")
"""Column headers of the numbers in the table of sources."""
HEADER = ("source", "task", "split", *COUNTS, "left out")
"""Column headers of the table of sources."""
LENGTHS = ("mean", "min", "max", "median")
"""Attributes of `Lengths`, in the order of the tables' columns."""


def source_rows(mixture: Mixture) -> list[list[str]]:
    """Build the table of sources with counts and reasons for what was left out, as rows of text, the header first."""
    return [list(HEADER)] + [
        [
            report.name,
            report.task,
            report.split,
            f"{report.rows:,}",
            f"{report.found:,}",
            f"{report.kept:,}",
            f"{report.shared:,}",
            f"{report.repeated:,}",
            f"{report.negatives:,}",
            left_out(report),
        ]
        for report in mixture.reports
    ]


def left_out(report: SourceReport) -> str:
    """Return why a source is unused, else how many rows and pairs were left out for which reason; "" if none were."""
    if report.problem:
        return report.problem
    return "; ".join(f"{count:,} {why}" for why, count in report.dropped.items())


def length_rows(mixture: Mixture) -> list[list[str]]:
    """Build the table of the lengths of kept texts, in characters, as in the paper's Table 4, the header first."""
    header = ["source", *(f"{of} {name}" for of in ("anchor", "positive") for name in LENGTHS)]
    kept = [report for report in mixture.reports if report.anchors and report.positives]
    return [header] + [
        [report.name, *(f"{getattr(part, name):,.0f}" for part in lengths(report) for name in LENGTHS)]
        for report in kept
    ]


def lengths(report: SourceReport) -> list[Lengths]:
    """Return the length statistics of a source's anchors and positives; an empty list if nothing is kept."""
    return [part for part in (report.anchors, report.positives) if part is not None]


def sources_csv(mixture: Mixture) -> str:
    """Format counts, reasons and text lengths of all sources as CSV, with unformatted numbers for other software."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [f"{of}_{name}" for of in ("anchor", "positive") for name in LENGTHS]
    counts = ["rows", "found", "kept", "shared", "repeated", "negatives"]
    writer.writerow(["source", "task", "split", *counts, "left_out", *names])
    for report in mixture.reports:
        measured = [getattr(part, name) for part in lengths(report) for name in LENGTHS] or [""] * len(names)
        found = [getattr(report, name) for name in counts]
        writer.writerow([report.name, report.task, report.split, *found, left_out(report), *measured])
    return text.getvalue()


def sentences(mixture: Mixture, regularizer: Regularizer) -> list[str]:
    """Summarize the offline phase: pairs and sources, then what the regularizer was prepared with."""
    used = sum(report.kept > 0 for report in mixture.reports)
    return [f"{len(mixture):,} pairs of {used} sources are trained on.", *regularizer.summarize(mixture)]


def offline_page(
    mixture: Mixture,
    regularizer: Regularizer,
    report: RegularizerReport,
    warnings: Sequence[str],
    parts: Sequence[Section] = (),
) -> str:
    """Render the offline phase, and then further sections, as one self-contained HTML page.

    Args:
        mixture: the pairs.
        regularizer: the prepared regularizer.
        report: its sections.
        warnings: warnings for the user.
        parts: further sections.
    """
    used = f"; {regularizer.settings}" if regularizer.settings else ""
    tables = {"Sources: what was kept and dropped, and why": source_rows(mixture)}
    tables["Characters of the texts"] = length_rows(mixture)
    section = Section(
        title="Before training: the sources" + report.title,
        sentences=sentences(mixture, regularizer),
        figures=report.figures,
        tables={title: Table.from_rows(rows) for title, rows in tables.items()} | dict(report.tables),
        problems=warnings,
    )
    return render_page(
        [section, *parts],
        about=f"Computed from the encoder as it was before training{used}.",
        files="sources.csv and targets/",
        reference=REFERENCE,
    )
