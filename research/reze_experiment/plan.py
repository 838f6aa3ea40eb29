"""Plan of an experiment: one unit per target, condition, learning rate and seed."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lathe.training.datasets.pairs import Pair
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.errors import DataSetError, JobError
from lathe.training.finetuning.mixture import Mixture
from lathe.training.finetuning.mixture_builder import read_sources
from lathe.training.finetuning.reference import list_prompt_warnings
from research.reze_experiment.conditions import build_conditions
from research.reze_experiment.domain import sample_domain_texts
from research.reze_experiment.settings import ExperimentSettings
from research.reze_experiment.targets import Target, choose_targets
from research.reze_experiment.unit import Unit


@dataclass(frozen=True)
class Prepared:
    """Target with everything needed to train for it.

    Attributes:
        target: data set that is held out.
        mixture: pairs of the other sources, for pre-finetuning.
        pairs: training pairs of the target, for fine-tuning.
        tested: digest of the target's files.
    """

    target: Target
    mixture: Mixture
    pairs: tuple[Pair, ...]
    tested: str


@dataclass(frozen=True)
class Plan:
    """Targets and units of an experiment.

    Attributes:
        prepared: usable targets.
        units: all units, in the order in which they run.
        problems: warnings for the user, without duplicates.
    """

    prepared: list[Prepared]
    units: list[Unit]
    problems: list[str]


def build_plan(
    settings: ExperimentSettings, spec: EncoderSpec, device: str | None, encoder: Encoder, out: Path
) -> Plan:
    """Read all sources and return the units to run, the usable targets and the warnings.

    Nothing is trained or encoded.

    Args:
        settings: settings of the experiment.
        spec: base model, with the sequence length for training.
        device: device to run on; None for the best available one.
        encoder: loaded base model.
        out: folder of the experiment.

    Raises:
        JobError: if no data set can be a target, or a source cannot be used.
    """
    problems: list[str] = []
    prepared = list(prepare_targets(settings, problems))
    if not prepared:
        raise JobError("no target can be used: " + "; ".join(problems))
    for one in prepared:
        short = [n for n in settings.rows if n > len(one.pairs)]
        if short:
            sizes = ", ".join(map(str, short))
            problems.append(f"{one.target.name} has {len(one.pairs):,} training rows: it is left out at {sizes}")
        problems += one.mixture.notes
        for condition in build_conditions(settings):
            problems += condition.regularizer.list_warnings(one.mixture, encoder.dimensions)
        problems += one.mixture.list_single_pair_warnings()
    problems += list_prompt_warnings(encoder, [one.target.prompts for one in prepared])
    domain = tuple(sample_domain_texts(settings))
    units = list(build_units(settings, spec, device, encoder.fingerprint, prepared, domain, out))
    return Plan(prepared, units, list(dict.fromkeys(problems)))


def prepare_targets(settings: ExperimentSettings, problems: list[str]) -> Iterator[Prepared]:
    """Yield each usable target, with its pairs.

    Append a message to `problems` for each that cannot be read.
    """
    for target in choose_targets(settings):
        try:
            pairs = target.read_training_pairs()
            mixture = read_sources(settings, target.data, forbid_training=True).build()
        except DataSetError as error:
            problems.append(f"{target.name} cannot be a target: {error}")
        else:
            yield Prepared(target, mixture, tuple(pairs), target.data.digest())


def build_units(
    settings: ExperimentSettings,
    spec: EncoderSpec,
    device: str | None,
    fingerprint: str,
    prepared: list[Prepared],
    domain: tuple[str, ...],
    out: Path,
) -> Iterator[Unit]:
    """Yield a unit for every combination of seed, learning rate, target and condition, in that order of loops.

    Seeds are the outer loop, so that an experiment that is stopped early has complete rows in its tables. Vectors of
    pairs, for the plot of the shift, are stored for the first seed only. A unit fine-tunes on no more rows than its
    target has.

    Args:
        settings: settings of the experiment.
        spec: base model, with the sequence length for training.
        device: device to run on.
        fingerprint: fingerprint of the base model's weights.
        prepared: usable targets.
        domain: held-out texts of all sources.
        out: folder of the experiment.
    """
    for number, seed in enumerate(settings.seeds):
        for rate in settings.learning_rates:
            for one in prepared:
                for condition in build_conditions(settings):
                    yield Unit(
                        spec=spec,
                        device=device,
                        encoder=fingerprint,
                        target=one.target,
                        tested=one.tested,
                        pairs=one.pairs,
                        mixture=one.mixture,
                        domain=domain,
                        condition=condition,
                        training=settings.training.model_copy(update={"learning_rate": rate, "seed": seed}),
                        rows=tuple(n for n in settings.rows if n <= len(one.pairs)),
                        untrained="none" in settings.methods,
                        limit=settings.limit,
                        out=out,
                        shown=number == 0,
                    )
