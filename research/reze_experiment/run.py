"""Experiment from its settings to results, resumed where it was stopped.

OUT/
├── reference/     vectors of single texts by the base model, encoded once      reference.py
├── targets/       regression targets of the regularizer                        targets.py
├── results/       results logs, a file per unit, a line per cell               results.py
├── relations/     vectors of a few pairs, before and after, for the plot       unit.py
├── work/          models and checkpoints of running units
└── experiment.json, results.csv, report.html, *.png                            report.py
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.errors import JobError, TrainingError
from lathe.training.evaluation.worker import Workers
from lathe.training.finetuning.reference import ReferenceVectors
from lathe.training.reporting.text import format_duration
from lathe.training.workspace import lock_folder
from lathe.transforms.progress import Progress
from research.reze_experiment.conditions import Condition, build_conditions
from research.reze_experiment.plan import Plan, Prepared, build_plan
from research.reze_experiment.results import Result
from research.reze_experiment.settings import ExperimentSettings
from research.reze_experiment.unit import Unit, run_unit

REFERENCE_SHARE = 0.05
"""Share of the progress that encoding with the base model takes."""


@dataclass(frozen=True)
class Experiment:
    """Results of an experiment with what produced them.

    Attributes:
        settings: settings of the experiment.
        encoder: description of the base model.
        prepared: held-out targets, each with the pairs trained on.
        conditions: conditions.
        units: all units.
        results: results of all cells that could be measured.
        problems: warnings, and what could not be measured and why.
    """

    settings: ExperimentSettings
    encoder: dict[str, object]
    prepared: list[Prepared]
    conditions: list[Condition]
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
    """Run every unit that lacks results, in worker processes, and return all results of the experiment.

    Writes into `out`, which is locked meanwhile. A unit that fails is named in `problems`; the others go on.

    Args:
        settings: settings of the experiment.
        spec: base model; used in float32 without compilation.
        device: device to train on; None for the best available one.
        out: folder of the experiment.
        processes: number of units at once, each with one thread.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        JobError: if nothing can be a target, a source cannot be used, nothing could be measured, or another experiment
            has locked the folder.
    """
    with lock_folder(out, JobError(f"another experiment is writing to {out}; name another folder with --out")):
        base = replace(spec, dtype="float32", compile=False, max_length=settings.training.max_length or spec.max_length)
        on_progress(0.0, "reading the sources")
        encoder = Encoder(base, device)
        planned = build_plan(settings, base, device, encoder, out)
        encode_reference(encoder, planned, out, on_progress)
        failed = list(run_units(planned.units, processes, on_progress))
        results = list(read_results(planned.units))
        if not results:
            raise JobError("nothing could be measured: " + "; ".join(planned.problems + failed))
        return Experiment(
            settings,
            encoder.describe(),
            planned.prepared,
            build_conditions(settings),
            planned.units,
            results,
            planned.problems + failed,
        )


def encode_reference(encoder: Encoder, planned: Plan, out: Path, on_progress: Progress) -> None:
    """Encode all training texts with the base model into `out/reference`, if a regularized unit still lacks results.

    Units share these vectors. Vectors that are already stored are not encoded again.
    """
    if any(unit.condition.regularizer.settings and unit.list_missing() for unit in planned.units):
        texts = [text for one in planned.prepared for text in (*one.mixture.anchors, *one.mixture.positives)]
        ReferenceVectors(encoder, out / "reference").encode(
            list(dict.fromkeys(texts)),
            lambda fraction, sentence: on_progress(REFERENCE_SHARE * fraction, sentence),
        )


def run_units(units: Sequence[Unit], processes: int, on_progress: Progress) -> Iterator[str]:
    """Run the units that lack results in worker processes, and yield a message for each failed unit or cell.

    Each unit appends its results to its own results log.

    Args:
        units: all units; complete ones are skipped.
        processes: number of units at once.
        on_progress: called after each unit with progress in [0, 1] and a message with the estimated time left.
    """
    waiting = [unit for unit in units if unit.list_missing()]
    begun = time.monotonic()
    with Workers(processes) as workers:
        for done, (index, result) in enumerate(workers.run([(run_unit, (unit,)) for unit in waiting]), 1):
            left = (time.monotonic() - begun) / done * (len(waiting) - done)
            fraction = REFERENCE_SHARE + (1 - REFERENCE_SHARE) * done / len(waiting)
            on_progress(fraction, f"{done} of {len(waiting)} units done, {format_duration(left)} left")
            if isinstance(result, Exception):
                what = str(result) if isinstance(result, TrainingError) else f"{type(result).__name__}: {result}"
                what = what.replace(f"{waiting[index].out}/", "")  # results say nothing of this machine
                yield f"{waiting[index].key}, seed {waiting[index].training.seed}: {what}"
            else:
                yield from result


def read_results(units: Sequence[Unit]) -> Iterator[Result]:
    """Yield the stored results that the units ask for.

    Results of other settings in the same files are skipped.
    """
    for unit in units:
        wanted = unit.condition.cells(unit.rows, unit.untrained)
        yield from (result for result in unit.log.read() if (result.method, result.rows) in wanted)
