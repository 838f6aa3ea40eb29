"""What an experiment will do: a unit for every target, arm, learning rate and seed."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from training.encoder.encoder import Encoder
from training.encoder.spec import EncoderSpec
from training.errors import DataSetError, JobError
from training.finetuning.mixing import mix
from training.finetuning.mixture import Mixture
from training.finetuning.positives import Pair
from training.finetuning.reference import unprompted
from training.research.reze_experiment.arms import arms
from training.research.reze_experiment.domain import domain_texts
from training.research.reze_experiment.settings import ExperimentSettings
from training.research.reze_experiment.targets import Target, chosen_targets
from training.research.reze_experiment.unit import Unit


@dataclass(frozen=True)
class Prepared:
    """A target with what is trained on where it is left out, its own training pairs, and the digest of its files."""

    target: Target
    mixture: Mixture
    pairs: tuple[Pair, ...]
    tested: str


@dataclass(frozen=True)
class Plan:
    """Targets, units, and what a user should know beforehand."""

    prepared: list[Prepared]
    units: list[Unit]
    problems: list[str]


def plan(settings: ExperimentSettings, spec: EncoderSpec, device: str | None, encoder: Encoder, out: Path) -> Plan:
    """Read everything, and say what is to be done.

    Args:
        settings: what is compared on what.
        spec: the base model, at the length that is trained on.
        device: to run on.
        encoder: the base model.
        out: the experiment's folder.

    Raises:
        JobError: if nothing can be a target, or a source cannot be used.
    """
    problems: list[str] = []
    prepared = list(prepare(settings, problems))
    if not prepared:
        raise JobError("no target can be used: " + "; ".join(problems))
    for one in prepared:
        short = [n for n in settings.rows if n > len(one.pairs)]
        if short:
            sizes = ", ".join(map(str, short))
            problems.append(f"{one.target.name} has {len(one.pairs):,} training rows: it is left out at {sizes}")
        problems += one.mixture.warnings(encoder.dimensions, any(arm.regularizer for arm in arms(settings)))
    problems += unprompted(encoder, [one.target.prompts for one in prepared])
    domain = tuple(domain_texts(settings))
    units = list(units_of(settings, spec, device, encoder.fingerprint, prepared, domain, out))
    return Plan(prepared, units, list(dict.fromkeys(problems)))


def prepare(settings: ExperimentSettings, problems: list[str]) -> Iterator[Prepared]:
    """Every target that can be used; the others become problems."""
    for target in chosen_targets(settings):
        try:
            pairs, mixture = target.training_pairs(), mix(settings, target.data, whole=True)
        except DataSetError as error:
            problems.append(f"{target.name} cannot be a target: {error}")
        else:
            yield Prepared(target, mixture, tuple(pairs), target.data.digest())


def units_of(
    settings: ExperimentSettings,
    spec: EncoderSpec,
    device: str | None,
    fingerprint: str,
    prepared: list[Prepared],
    domain: tuple[str, ...],
    out: Path,
) -> Iterator[Unit]:
    """Every unit; seed after seed, so that an experiment that is stopped has whole rows of its tables."""
    for number, seed in enumerate(settings.seeds):
        for rate in settings.learning_rates:
            for one in prepared:
                for arm in arms(settings):
                    yield Unit(
                        spec=spec,
                        device=device,
                        encoder=fingerprint,
                        target=one.target,
                        tested=one.tested,
                        pairs=one.pairs,
                        mixture=one.mixture,
                        domain=domain,
                        arm=arm,
                        training=settings.training.model_copy(update={"learning_rate": rate, "seed": seed}),
                        rows=tuple(n for n in settings.rows if n <= len(one.pairs)),
                        untrained="none" in settings.methods,
                        limit=settings.limit,
                        out=out,
                        shown=number == 0,
                    )
