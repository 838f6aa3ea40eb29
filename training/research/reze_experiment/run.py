"""An experiment from its settings to results, taken up again where it was stopped.

OUT/
├── reference/     vectors of single texts by the base model, encoded once      reference.py
├── targets/       what the regulariser pulls towards                           targets.py
├── results/       a file for each unit, a line for each cell                   book.py
├── relations/     of a few pairs, before and after, for the picture            unit.py
├── work/          models and checkpoints of units under way
└── experiment.json, results.csv, report.html, *.png                            report.py
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from training.encoder.encoder import Encoder
from training.encoder.spec import EncoderSpec
from training.errors import JobError, TrainingError
from training.evaluation.pool import Workers
from training.evaluation.progress import in_time
from training.finetuning.reference import Reference
from training.research.reze_experiment.arms import Arm, arms
from training.research.reze_experiment.book import Result
from training.research.reze_experiment.plan import Plan, Prepared, plan
from training.research.reze_experiment.settings import ExperimentSettings
from training.research.reze_experiment.unit import Unit, run_unit
from training.workspace import exclusive
from transforms.progress import Progress

REFERENCE_SHARE = 0.05
"""Of the work, for the progress."""


@dataclass(frozen=True)
class Experiment:
    """What was measured.

    Attributes:
        settings: as asked for.
        encoder: what is known of the base model.
        prepared: the data sets left out in turn, with what was trained on then.
        arms: what was done before the fine-tuning.
        units: all of them.
        results: of all cells that could be measured.
        problems: what could not, and why, and what else to know.
    """

    settings: ExperimentSettings
    encoder: dict[str, object]
    prepared: list[Prepared]
    arms: list[Arm]
    units: list[Unit]
    results: list[Result]
    problems: list[str]


def run_experiment(
    settings: ExperimentSettings,
    spec: EncoderSpec,
    device: str | None,
    out: Path,
    processes: int,
    on_progress: Progress,
) -> Experiment:
    """Run every unit that is not done yet.

    Args:
        settings: what is compared on what.
        spec: the base model.
        device: to train on; None for the best there is.
        out: the folder for everything.
        processes: units at once, of one thread each.
        on_progress: told a fraction and a sentence.

    Raises:
        JobError: if nothing can be a target, a source cannot be used, or another experiment has the folder.
    """
    with exclusive(out, JobError(f"another experiment is writing to {out}; name another folder with --out")):
        base = replace(spec, dtype="float32", compile=False, max_length=settings.training.max_length or spec.max_length)
        on_progress(0.0, "reading the sources")
        encoder = Encoder(base, device)
        planned = plan(settings, base, device, encoder, out)
        encode_reference(encoder, planned, out, on_progress)
        failed = list(run_units(planned.units, processes, on_progress))
        results = list(results_of(planned.units))
        if not results:
            raise JobError("nothing could be measured: " + "; ".join(planned.problems + failed))
        return Experiment(
            settings,
            encoder.describe(),
            planned.prepared,
            arms(settings),
            planned.units,
            results,
            planned.problems + failed,
        )


def encode_reference(encoder: Encoder, planned: Plan, out: Path, on_progress: Progress) -> None:
    """Encode what all regularised units share, once."""
    if any(unit.arm.regularizer and unit.missing() for unit in planned.units):
        texts = [text for one in planned.prepared for text in (*one.mixture.anchors, *one.mixture.positives)]
        Reference(encoder, out / "reference").encode(
            list(dict.fromkeys(texts)),
            lambda fraction, sentence: on_progress(REFERENCE_SHARE * fraction, sentence),
        )


def run_units(units: Sequence[Unit], processes: int, on_progress: Progress) -> Iterator[str]:
    """Run what is missing; give what went wrong, in sentences."""
    waiting = [unit for unit in units if unit.missing()]
    begun = time.monotonic()
    with Workers(processes) as workers:
        for done, (index, result) in enumerate(workers.run([(run_unit, (unit,)) for unit in waiting]), 1):
            left = (time.monotonic() - begun) / done * (len(waiting) - done)
            fraction = REFERENCE_SHARE + (1 - REFERENCE_SHARE) * done / len(waiting)
            on_progress(fraction, f"{done} of {len(waiting)} units done, {in_time(left)} left")
            if isinstance(result, Exception):
                what = str(result) if isinstance(result, TrainingError) else f"{type(result).__name__}: {result}"
                what = what.replace(f"{waiting[index].out}/", "")  # results say nothing of this machine
                yield f"{waiting[index].key}, seed {waiting[index].training.seed}: {what}"
            else:
                yield from result


def results_of(units: Sequence[Unit]) -> Iterator[Result]:
    """The results of these units; their files may hold more, of other settings."""
    for unit in units:
        wanted = unit.arm.cells(unit.rows, unit.untrained)
        yield from (result for result in unit.book.read() if (result.method, result.rows) in wanted)
