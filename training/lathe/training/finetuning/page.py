"""HTML report of a job, written before the training and again after it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lathe.training.finetuning.mining_statistics import MiningStatistics
from lathe.training.finetuning.mixture import Mixture
from lathe.training.finetuning.regularizers.regularizer import Regularizer, RegularizerReport
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
        """Sections of the regularizer; built once, since drawing takes seconds and training changes nothing of them."""
        return self.regularizer.report(self.mixture)

    def write(self, kept: int | None = None) -> None:
        """Write `sources.csv` and `report.html` to the job's folder, replacing earlier ones.

        Args:
            kept: step whose model is kept; None before the training. With a step, the evaluations during training are
                read from the training log and added.
        """
        from lathe.training.finetuning.callbacks import TrainingLog
        from lathe.training.finetuning.parts import build_curve_section, build_mining_section
        from lathe.training.finetuning.report import format_sources_csv, render_offline_page
        from lathe.training.finetuning.trainer import LOG

        parts = [build_mining_section(self.mined)] if self.mined else []
        lines = TrainingLog(self.out / "training" / LOG, dict).read() if kept is not None else []
        if kept is not None and any("measured" in line for line in lines):
            parts.append(build_curve_section(lines, kept))
        replace_synced(self.out / "sources.csv", format_sources_csv(self.mixture).encode())
        page = render_offline_page(self.mixture, self.regularizer, self.report, self.warnings, parts)
        replace_synced(self.out / "report.html", page.encode())
