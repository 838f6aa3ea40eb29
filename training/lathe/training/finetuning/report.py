"""Report on what a job is trained on and pulled towards: CSV table, HTML page, sentences for the terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lathe.training.finetuning.mining_statistics import MiningStatistics
from lathe.training.finetuning.mixture import Mixture, SourceReport
from lathe.training.finetuning.regularizers.regularizer import Regularizer, RegularizerReport
from lathe.training.reporting.page import Section, render_page
from lathe.training.reporting.tables import Table
from lathe.transforms.files import replace_synced


@dataclass(frozen=True)
class Page:
    """Contents of a job's report that are known before the training.

    Attributes:
        out: the job's folder.
        mixture: the pairs.
        regularizer: the prepared regularizer.
        warnings: warnings for the user.
        mined: statistics of the mined negatives, by source.
    """

    out: Path
    mixture: Mixture
    regularizer: Regularizer
    warnings: Sequence[str]
    mined: Mapping[str, MiningStatistics]

    @cached_property
    def report(self) -> RegularizerReport:
        """Sections of the regularizer.

        They are built once, since drawing takes seconds and training changes nothing of them.
        """
        return self.regularizer.report(self.mixture)

    def write(self, kept: int | None = None) -> None:
        """Write `report.html` and `sources.csv` to the job's folder, replacing earlier ones.

        Args:
            kept: step whose model is kept; None before the training. With a step, the evaluations during training are
                read from the training log and added.
        """
        from lathe.training.finetuning.callbacks import TrainingLog
        from lathe.training.finetuning.parts import build_curve_section, build_mining_section
        from lathe.training.finetuning.trainer import LOG

        parts = [build_mining_section(self.mined)] if self.mined else []
        lines = TrainingLog(self.out / "training" / LOG, dict).read() if kept is not None else []
        if kept is not None and any("measured" in line for line in lines):
            parts.append(build_curve_section(lines, kept))

        replace_synced(self.out / "sources.csv", format_sources_csv(self.mixture).encode())
        page = render_offline_page(self.mixture, self.regularizer, self.report, self.warnings, parts)
        replace_synced(self.out / "report.html", page.encode())


REFERENCE = "https://arxiv.org/abs/2604.17257"
"""Address of the REZE paper."""
LENGTHS = ("mean", "min", "max", "median")
"""Attributes of `Lengths`, in the order of the tables' columns."""


def build_source_table(mixture: Mixture) -> Table:
    """Build the table of sources: rows, pairs, kept pairs, shared texts, negatives, and what was left out and why."""
    return Table.from_records(
        (
            {
                "source": report.name,
                "task": report.task,
                "split": report.split,
                "rows": report.rows,
                "pairs": report.found,
                "kept": report.kept,
                "shared with the target": report.shared,
                "also in others": report.repeated,
                "negatives": report.negatives,
                "left out": explain_left_out(report),
            }
            for report in mixture.reports
        ),
        default=",",
    )


def explain_left_out(report: SourceReport) -> str:
    """Return why a source is unused, or how many rows and pairs were left out by reason.
    The text is empty if none were.
    """
    if report.problem:
        return report.problem
    return "; ".join(f"{count:,} {why}" for why, count in report.dropped.items())


def build_length_table(mixture: Mixture) -> Table:
    """Build the table of the lengths in characters of each source's anchors and positives (the paper's Table 4)."""
    return Table.from_records(
        (
            {"source": report.name} | _list_lengths(report, " ")
            for report in mixture.reports
            if report.anchors and report.positives
        ),
        default=",.0f",
    )


def _list_lengths(report: SourceReport, separator: str) -> dict[str, float | None]:
    """Return statistics of the text lengths of a source's anchors and positives, by name such as `anchor_mean`.
    A value is None if nothing of the source is kept.

    The separator stands between side and statistic.
    """
    return {
        f"{side}{separator}{name}": getattr(lengths, name, None)
        for side, lengths in (("anchor", report.anchors), ("positive", report.positives))
        for name in LENGTHS
    }


def format_sources_csv(mixture: Mixture) -> str:
    """Format all sources as CSV text: counts, what was left out and why, and text lengths, with unformatted numbers."""
    names = ("name", "task", "split", "rows", "found", "kept", "shared", "repeated", "negatives")
    return Table.from_records(
        {"source" if name == "name" else name: getattr(report, name) for name in names}
        | {"left_out": explain_left_out(report)}
        | _list_lengths(report, "_")
        for report in mixture.reports
    ).to_csv()


def summarize_offline_phase(mixture: Mixture, regularizer: Regularizer) -> list[str]:
    """Return sentences on what was prepared before training.
    They give the numbers of pairs and sources, then the regularizer's summary.
    """
    used = sum(report.kept > 0 for report in mixture.reports)
    return [f"{len(mixture):,} pairs of {used} sources are trained on.", *regularizer.summarize(mixture)]


def render_offline_page(
    mixture: Mixture,
    regularizer: Regularizer,
    report: RegularizerReport,
    warnings: Sequence[str],
    parts: Sequence[Section] = (),
) -> str:
    """Render what was prepared before training, and then further sections, as one self-contained HTML page.

    Args:
        mixture: the pairs.
        regularizer: the prepared regularizer.
        report: its sections.
        warnings: warnings for the user.
        parts: further sections.
    """
    used = f"; {regularizer.settings}" if regularizer.settings else ""
    tables = {
        "Sources: what was kept and dropped, and why": build_source_table(mixture),
        "Characters of the texts": build_length_table(mixture),
        **report.tables,
    }
    section = Section(
        title="Before training: the sources" + report.title,
        sentences=summarize_offline_phase(mixture, regularizer),
        figures=report.figures,
        tables={title: table for title, table in tables.items() if table},
        problems=warnings,
    )

    return render_page(
        [section, *parts],
        about=f"Computed from the encoder as it was before training{used}.",
        files="sources.csv and targets/",
        reference=REFERENCE,
    )
