"""Who reads the configurations that pages show."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from service.settings import read_settings
from training.finetuning.job import Job
from training.finetuning.job import read_settings as read_job
from training.research.reze_experiment.settings import ExperimentSettings
from training.synthesis.job import SynthesisJob

if TYPE_CHECKING:
    from tests.docs.workshop import Workshop


def read_encoders(path: Path, _workshop: "Workshop") -> None:
    """Read a value of `LATHE_ENCODERS`."""
    read_settings(encoders=path.read_text())


def read_log_line(path: Path, workshop: "Workshop") -> None:
    """Raise `ValueError` unless the server writes every key of this log line."""
    workshop.embed(["a request to be logged"])
    written = [json.loads(line) for line in workshop.log.read_text().splitlines() if line.startswith("{")]
    known = {key for line in written for key in line}
    if unknown := set(json.loads(path.read_text())) - known:
        raise ValueError(f"the server logs no {', '.join(sorted(unknown))}")


READERS: dict[str, Callable[[Path, "Workshop"], object]] = {
    "job": lambda path, _: read_job(path, Job),
    "experiment": lambda path, _: read_job(path, ExperimentSettings),
    "synthesis": lambda path, _: read_job(path, SynthesisJob),
    "encoders": read_encoders,
    "log line": read_log_line,
}
"""Each raises for what it cannot use."""
