"""Sentences about an experiment: what holds, what does not, and what cannot be told."""

from collections.abc import Iterator

from training.finetuning.regularizers.registry import REGULARIZED
from training.research.reze_experiment.arms import POSTPROCESSED
from training.research.reze_experiment.findings import PROPOSED, Difference, Findings
from training.research.reze_experiment.settings import METHODS
from training.research.reze_experiment.tables import named, shown, stage


def sentences(findings: Findings) -> list[str]:
    """Return all sentences about the findings, in reading order."""
    return [*compared(findings), *shifted(findings), *harmed(findings), *cautioned(findings)]


def compared(findings: Findings) -> Iterator[str]:
    """Yield a sentence on REZE's difference to each rival over all targets, per learning rate and row count.

    Post-processing methods are compared by their main score only, not by the linear probe.
    """
    for one in findings.differences:
        if one.method != PROPOSED or one.group != "all" or one.rival not in METHODS:
            continue
        if one.measure == "score" or one.rival not in POSTPROCESSED:
            yield (
                f"{where(one)}, REZE's {measure(one)} is {shown(one.points, signed=True, digits=2)} points from "
                f"{named(one.rival)}'s: {verdict(one)}; ahead on {one.better} of {one.targets} targets "
                f"({one.seeds} seeds)."
            )


def where(one: Difference) -> str:
    """Return the learning rate and the number of fine-tuning rows of a difference, as the start of a sentence."""
    return f"At learning rate {one.learning_rate:g}, {stage(one.rows)}"


def measure(one: Difference) -> str:
    """Return the name of the compared measure: "linear probe" or "score"."""
    return "linear probe" if one.measure == "linear_probe" else "score"


def verdict(one: Difference) -> str:
    """Return what the interval of a difference says: better, worse, no difference, or that one seed says nothing."""
    if one.seeds == 1:
        return "one seed tells nothing"
    if one.points.low is None:
        return "the same with every seed"
    return {1: "better", -1: "worse", 0: "no difference can be told"}[one.points.sign]


def shifted(findings: Findings) -> Iterator[str]:
    """Yield a sentence on the ratio of REZE's drift and IsoScore to PFT's and distillation's, per learning rate."""
    for rate in dict.fromkeys(shift.learning_rate for shift in findings.shifts):
        found = {shift.method: shift for shift in findings.shifts if shift.learning_rate == rate}
        for rival in ("pft", *REGULARIZED):
            if rival != PROPOSED and PROPOSED in found and rival in found and found[rival].drift.value > 0:
                drift = found[PROPOSED].drift.value / found[rival].drift.value
                isoscore = found[PROPOSED].isoscore.value / found[rival].isoscore.value
                yield (
                    f"At learning rate {rate:g} REZE moves the encoder {drift:.2f} times as far as {named(rival)}, and "
                    f"its IsoScore is {isoscore:.2f} times as high."
                )


def harmed(findings: Findings) -> Iterator[str]:
    """Yield a sentence on how many points plain pre-finetuning gains or loses against none, at each row count."""
    averages = {(a.learning_rate, a.rows, a.method): a.score.value for a in findings.averages if a.measure == "score"}
    for (rate, rows, method), score in averages.items():
        rival = averages.get((rate, rows, "ft" if rows else "none"))
        if method == "pft" and rival is not None:
            way = "below" if score < rival else "above"
            yield (
                f"At learning rate {rate:g}, {stage(rows)}, plain pre-finetuning is {abs(score - rival):.1f} points "
                f"{way} {'FT alone' if rows else 'no training'}."
            )


def cautioned(findings: Findings) -> Iterator[str]:
    """Yield a warning, if there were sweeps or variants, not to judge one on the targets it was chosen by."""
    if any(a.method not in METHODS for a in findings.averages):
        yield (
            "Weights, centres and variants were compared on these very targets, and no interval is corrected for their "
            "number: choose one here, and judge it on other targets."
        )
