"""The page of a job, written before the training and again when there is more to say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from training.finetuning.afterwards import Compared
from training.finetuning.job import RegularizerSettings
from training.finetuning.mining_statistics import Statistics
from training.finetuning.mixture import Mixture
from training.finetuning.targets import Targets
from transforms.files import replace_synced


@dataclass(frozen=True)
class Page:
    """What is known before the training.

    Attributes:
        out: the job's folder.
        mixture: the pairs.
        targets: of the regulariser.
        regularizer: its settings; None without one.
        warnings: what to know.
        mined: what was mined of each source.
    """

    out: Path
    mixture: Mixture
    targets: Targets | None
    regularizer: RegularizerSettings | None
    warnings: Sequence[str]
    mined: Mapping[str, Statistics]

    @cached_property
    def pictures(self) -> Mapping[str, str]:
        """SVG of the targets by what it shows; drawn once, as that takes seconds and training changes nothing in it."""
        from training.finetuning.plots import pictures

        return pictures(self.mixture, self.targets) if self.targets is not None else {}

    def write(self, kept: int | None = None, compared: Mapping[str, Compared] | None = None) -> None:
        """Write the table of the sources, and the page.

        Args:
            kept: the step whose model is kept, once trained.
            compared: the model against its base, by suite.
        """
        from training.finetuning.parts import comparison_part, curve_part, mining_part
        from training.finetuning.progress import read_lines
        from training.finetuning.report import offline_page, sources_csv
        from training.finetuning.trainer import LINES

        parts = [mining_part(self.mined)] if self.mined else []
        lines = read_lines(self.out / "training" / LINES) if kept is not None else []
        if kept is not None and any("measured" in line for line in lines):
            parts.append(curve_part(lines, kept))
        if compared:
            parts.append(comparison_part(compared))
        replace_synced(self.out / "sources.csv", sources_csv(self.mixture).encode())
        page = offline_page(self.mixture, self.targets, self.regularizer, self.pictures, self.warnings, parts)
        replace_synced(self.out / "report.html", page.encode())
