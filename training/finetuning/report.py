"""Report on what a job is trained on and pulled towards: a CSV table, an HTML page, sentences for the terminal."""

import csv
import io
from collections.abc import Mapping, Sequence

import numpy as np

from training.finetuning.job import RegularizerSettings
from training.finetuning.mixture import Lengths, Mixture, SourceReport
from training.finetuning.plots import pulled
from training.finetuning.targets import Targets
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


def shrinkage_rows(mixture: Mixture, targets: Targets) -> list[list[str]]:
    """Build the table of how each source is shrunk, as rows of text, the header first.

    Columns: pairs, dimensions shrunk, mean and largest pull in these, mean cosine of relation and target.
    """
    assert targets.shrinkage is not None and targets.geometry is not None  # checked by the caller
    share = pulled(targets.shrinkage)
    rows = [["source", "pairs", "dimensions shrunk", "mean pull there", "largest pull", "mean cos(r, r̂)"]]
    for source, name in enumerate(mixture.names):
        touched = share[source][share[source] != 0]
        rows.append(
            [
                name,
                f"{int((mixture.sources == source).sum()):,}",
                f"{len(touched):,}",
                f"{touched.mean():.2f}" if len(touched) else "–",
                f"{touched.max():.2f}" if len(touched) else "–",
                f"{targets.geometry.source_cosines[source]:.3f}",
            ]
        )
    return rows


def sentences(mixture: Mixture, targets: Targets | None, settings: RegularizerSettings | None) -> list[str]:
    """Summarize the offline phase: pairs and sources, active and shrunk dimensions, variance before and after."""
    used = sum(report.kept > 0 for report in mixture.reports)
    said = [f"{len(mixture):,} pairs of {used} sources are trained on."]
    if settings is None or targets is None:
        return [*said, "There is no regulariser: the encoder is free to move."]
    if targets.shrinkage is None or targets.geometry is None:
        return [*said, "The target is the reference itself: plain distillation."]
    shrinkage, geometry = targets.shrinkage, targets.geometry
    changed = int((pulled(shrinkage) != 0).sum())
    said.append(
        f"{shrinkage.active} of {len(shrinkage.eigenvalues)} dimensions are active, {shrinkage.variant.sum()} of them "
        f"separate the sources by more than the threshold {shrinkage.dispersion_threshold:.3g}; {changed:,} of "
        f"{shrinkage.shrink.size:,} (source, dimension) pairs are shrunk, {shrinkage.clipped:,} factors were clipped."
    )
    before, after = geometry.between
    said.append(
        f"The variance between sources falls from {before:.4f} to {after:.4f} ({share_of(after, before)}), the total "
        f"from {geometry.total[0]:.4f} to {geometry.total[1]:.4f} ({share_of(geometry.total[1], geometry.total[0])})."
    )
    said.append(f"Targets are near where the relations were: cos(r, r̂) averages {np.mean(geometry.cosines):.3f}.")
    return said


def share_of(part: float, whole: float) -> str:
    """Format a part as a percentage of the whole: "40% of it", or "nothing to begin with" if the whole is 0."""
    return f"{part / whole:.0%} of it" if whole > 0 else "nothing to begin with"


def offline_page(
    mixture: Mixture,
    targets: Targets | None,
    settings: RegularizerSettings | None,
    pictures: Mapping[str, str],
    warnings: Sequence[str],
    parts: Sequence[Section] = (),
) -> str:
    """Render the offline phase, and then further sections, as one self-contained HTML page.

    Args:
        mixture: the pairs.
        targets: targets of the regulariser; None without one.
        settings: settings of the regulariser; None without one.
        pictures: SVG figures by title.
        warnings: warnings for the user.
        parts: further sections.
    """
    tables = {"Sources: what was kept and dropped, and why": source_rows(mixture)}
    tables["Characters of the texts"] = length_rows(mixture)
    shrunk = targets is not None and targets.shrinkage is not None
    if targets is not None and shrunk:
        tables["What is done to each source"] = shrinkage_rows(mixture, targets)
    section = Section(
        title="Before training: the sources" + (" and what is shrunk" if shrunk else ""),
        sentences=sentences(mixture, targets, settings),
        figures=pictures,
        tables={title: Table.from_rows(rows) for title, rows in tables.items()},
        problems=warnings,
    )
    return render_page(
        [section, *parts],
        about="Computed from the encoder as it was before training" + (f"; {settings}" if settings else "") + ".",
        files="sources.csv and targets/",
        reference=REFERENCE,
    )
