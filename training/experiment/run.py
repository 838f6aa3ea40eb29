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
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from training.encoders import Encoder
from training.errors import JobError
from training.evaluation.pool import Workers
from training.evaluation.progress import in_time
from training.experiment.arms import Arm, arms
from training.experiment.book import Result
from training.experiment.domain import domain_texts
from training.experiment.settings import ExperimentSettings
from training.experiment.targets import chosen_targets
from training.experiment.unit import Unit, run_unit, target_rows
from training.finetuning.datasets import FolderDataSet
from training.finetuning.job import Prompts, TargetSettings
from training.finetuning.mixture import Mixture, mix
from training.finetuning.reference import Reference
from training.spec import EncoderSpec
from transforms.transform import Progress

REFERENCE_SHARE = 0.05
"""Of the work, for the progress."""


@dataclass(frozen=True)
class Experiment:
    """What was measured.

    Attributes:
        settings: as asked for.
        encoder: what is known of the base model.
        targets: the data sets left out in turn.
        mixtures: of the other sources, by target.
        arms: what was done before the fine-tuning.
        units: all of them.
        results: of all cells that could be measured.
        problems: what could not, and why.
    """

    settings: ExperimentSettings
    encoder: dict[str, object]
    targets: list[FolderDataSet]
    mixtures: dict[str, Mixture]
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
    with claimed(out):
        base = replace(spec, dtype="float32", compile=False, max_length=settings.training.max_length or spec.max_length)
        targets = chosen_targets(settings)
        on_progress(0.0, "reading the sources")
        mixtures = {target.name: mix(settings, TargetSettings(folder=target.folder)) for target in targets}
        problems: list[str] = []
        domain = tuple(domain_texts(settings, mixtures.values()))
        units = list(planned(settings, base, device, out, targets, mixtures, domain, problems))
        encoder = encode_reference(base, device, out, mixtures, units, on_progress)
        problems += run_units(units, processes, on_progress)
        wanted = {unit.key: unit.arm.cells(unit.rows, unit.untrained) for unit in units}
        results = [
            result for unit in units for result in unit.book.read() if (result.method, result.rows) in wanted[unit.key]
        ]
        if not results:
            raise JobError("nothing could be measured: " + "; ".join(problems))
        return Experiment(settings, encoder, targets, mixtures, arms(settings), units, results, problems)


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """The folder, for one experiment at a time.

    Raises:
        JobError: if another has it.
    """
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / ".lock").acquire(blocking=False):
            yield
    except Timeout:
        raise JobError(f"another experiment is writing to {out}; name another folder with --out") from None


def planned(
    settings: ExperimentSettings,
    spec: EncoderSpec,
    device: str | None,
    out: Path,
    targets: Sequence[FolderDataSet],
    mixtures: dict[str, Mixture],
    domain: tuple[str, ...],
    problems: list[str],
) -> Iterator[Unit]:
    """Every unit; seed after seed, so that an experiment that is stopped has whole rows of its tables."""
    prompts = {target.folder: target.prompts for target in settings.targets}
    sizes = {target.name: len(target_rows(target, 0)) for target in targets}
    for name, size in sizes.items():
        short = [n for n in settings.rows if n > size]
        if short:
            problems.append(f"{name} has {size:,} training rows: it is left out at {', '.join(map(str, short))}")
    for number, seed in enumerate(settings.seeds):
        for rate in settings.learning_rates:
            for target in targets:
                for arm in arms(settings):
                    yield Unit(
                        spec=spec,
                        device=device,
                        target=target,
                        prompts=prompts.get(target.folder, Prompts()),
                        mixture=mixtures[target.name],
                        domain=domain,
                        arm=arm,
                        training=settings.training.model_copy(update={"learning_rate": rate, "seed": seed}),
                        rows=tuple(n for n in settings.rows if n <= sizes[target.name]),
                        untrained="none" in settings.methods,
                        limit=settings.limit,
                        out=out,
                        shown=number == 0,
                    )


def encode_reference(
    spec: EncoderSpec,
    device: str | None,
    out: Path,
    mixtures: dict[str, Mixture],
    units: Sequence[Unit],
    on_progress: Progress,
) -> dict[str, object]:
    """Encode what all regularised units share, once; give what is known of the base model."""
    encoder = Encoder(spec, device)
    if any(unit.arm.regularizer and unit.missing() for unit in units):
        texts = [text for mixture in mixtures.values() for text in (*mixture.anchors, *mixture.positives)]
        Reference(encoder, out / "reference").encode(
            list(dict.fromkeys(texts)),
            lambda fraction, sentence: on_progress(REFERENCE_SHARE * fraction, sentence),
        )
    return encoder.describe()


def run_units(units: Sequence[Unit], processes: int, on_progress: Progress) -> Iterator[str]:
    """Run what is missing; give what went wrong, a sentence for each unit."""
    waiting = [unit for unit in units if unit.missing()]
    begun = time.monotonic()
    with Workers(processes) as workers:
        for done, (index, result) in enumerate(workers.run([(run_unit, (unit,)) for unit in waiting]), 1):
            left = (time.monotonic() - begun) / done * (len(waiting) - done)
            fraction = REFERENCE_SHARE + (1 - REFERENCE_SHARE) * done / len(waiting)
            on_progress(fraction, f"{done} of {len(waiting)} units done, {in_time(left)} left")
            if isinstance(result, Exception):
                unit = waiting[index]
                yield f"{unit.key}, seed {unit.training.seed}: {result}"
