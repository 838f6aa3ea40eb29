"""Sentences about an experiment: what holds, what does not, and what cannot be told."""

from collections.abc import Iterator

from training.finetuning.regularizers.registry import REGULARIZED
from training.research.reze_experiment.arms import POSTPROCESSED
from training.research.reze_experiment.findings import PROPOSED, Difference, Findings
from training.research.reze_experiment.settings import METHODS
from training.research.reze_experiment.tables import FORMAT_POINTS, format_stage, name_method


def summarize_experiment(findings: Findings) -> list[str]:
    """Return all sentences about the findings, in reading order."""
    parts = (_describe_differences, _describe_shifts, _describe_harm, _warn_of_selection)
    return [sentence for part in parts for sentence in part(findings)]


def _describe_differences(findings: Findings) -> Iterator[str]:
    """Yield a sentence on REZE's difference to each rival over all targets, per learning rate and row count.

    Post-processing methods are compared by their main score only, not by the linear probe.
    """
    for one in findings.differences:
        if one.method != PROPOSED or one.group != "all" or one.rival not in METHODS:
            continue
        if one.measure == "score" or one.rival not in POSTPROCESSED:
            measure = "linear probe" if one.measure == "linear_probe" else "score"
            yield (
                f"At learning rate {one.learning_rate:g}, {format_stage(one.rows)}, REZE's {measure} is "
                f"{FORMAT_POINTS(one.points)} points from {name_method(one.rival)}'s: {judge_difference(one)}; "
                f"ahead on {one.better} of {one.targets} targets ({one.seeds} seeds)."
            )


def judge_difference(one: Difference) -> str:
    """Return what the interval of a difference says: better, worse, no difference, or that one seed says nothing."""
    if one.seeds == 1:
        return "one seed tells nothing"
    if one.points.low is None:
        return "the same with every seed"
    return {1: "better", -1: "worse", 0: "no difference can be told"}[one.points.sign]


def _describe_shifts(findings: Findings) -> Iterator[str]:
    """Yield a sentence on the ratio of REZE's drift and IsoScore to PFT's and distillation's, per learning rate."""
    for rate in dict.fromkeys(shift.learning_rate for shift in findings.shifts):
        found = {shift.method: shift for shift in findings.shifts if shift.learning_rate == rate}
        for rival in ("pft", *REGULARIZED):
            if rival != PROPOSED and PROPOSED in found and rival in found and found[rival].drift.value > 0:
                drift = found[PROPOSED].drift.value / found[rival].drift.value
                isoscore = found[PROPOSED].isoscore.value / found[rival].isoscore.value
                yield (
                    f"At learning rate {rate:g} REZE moves the encoder {drift:.2f} times as far as "
                    f"{name_method(rival)}, and its IsoScore is {isoscore:.2f} times as high."
                )


def _describe_harm(findings: Findings) -> Iterator[str]:
    """Yield a sentence on how many points plain pre-finetuning gains or loses against none, at each row count."""
    averages = {(a.learning_rate, a.rows, a.method): a.score.value for a in findings.averages if a.measure == "score"}
    for (rate, rows, method), score in averages.items():
        rival = averages.get((rate, rows, "ft" if rows else "none"))
        if method == "pft" and rival is not None:
            way = "below" if score < rival else "above"
            yield (
                f"At learning rate {rate:g}, {format_stage(rows)}, plain pre-finetuning is "
                f"{abs(score - rival):.1f} points {way} {'FT alone' if rows else 'no training'}."
            )


def _warn_of_selection(findings: Findings) -> Iterator[str]:
    """Yield a warning, if there were sweeps or variants, not to judge one on the targets it was chosen by."""
    if any(a.method not in METHODS for a in findings.averages):
        yield (
            "Weights, centres and variants were compared on these very targets, and no interval is corrected for their "
            "number: choose one here, and judge it on other targets."
        )
