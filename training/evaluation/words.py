"""Findings in plain sentences: what holds, what does not, and what cannot be told."""

from collections.abc import Iterator, Sequence

from training.evaluation.findings import Findings
from training.evaluation.reduction import RIVAL, Retention
from training.evaluation.statistics import Interval

R2 = "R2"
PUBLISHED = {
    "classification t": " (the mean-bias paper: r = .72 [.47, .86] over 38 models)",
    "mean difference": "",
}
"""What goes with ‖μ‖, and what the paper found of it."""


def sentences(findings: Findings) -> list[str]:
    """Everything that can be said of an evaluation."""
    return [
        *debiasing(findings),
        *with_the_norm(findings),
        *by_sentences(findings),
        *reductions(findings),
        *of_geometry(findings),
        *across_languages(findings),
    ]


def debiasing(findings: Findings) -> Iterator[str]:
    """Each method against raw vectors, then R2 against R1."""
    for label in findings.labels:
        if label not in findings.overall:
            continue
        tests = [cell.test for cell in findings.cells if cell.label == label]
        verdicts = [test.verdict for test in tests]
        counts = f"better on {verdicts.count('win')}, worse on {verdicts.count('loss')} of {counted(tests, 'encoder')}"
        change = findings.overall[label]
        yield f"{label} changes the score by {points(change)}: {moved(change)}; {counts} (|t| > 2)."
    for family, count in findings.head_to_head.items():
        yield (
            f"In {family.lower()}, R2's t is above R1's on {count['ahead']} and below on {count['behind']} of "
            f"{count['of']} encoders (the mean-bias paper: retrieval 35 of 38, classification 23 of 38 above)."
        )
    effects = [effect for effect in findings.large_effects if effect.label == R2]
    if R2 in findings.labels:
        up = sum(effect.difference > 0 for effect in effects)
        yield f"R2 changes {counted(effects, 'score')} by more than .1 and 2 %: {up} up, {len(effects) - up} down."


def with_the_norm(findings: Findings) -> Iterator[str]:
    """Whether the gain goes with ‖μ‖."""
    for what, correlation in findings.norm_correlations.get(R2, {}).items():
        if correlation is None or what not in PUBLISHED:
            continue
        r = correlation.pearson
        told = {1: "it grows with ‖μ‖", -1: "it falls with ‖μ‖", 0: "no relation can be told"}[r.sign]
        yield (
            f"R2's {what} against ‖μ‖ over {correlation.n} encoders: r = {bounded(r)}, {told}{PUBLISHED[what]}. The "
            "encoders are resampled, as if they had nothing in common."
        )


def by_sentences(findings: Findings) -> Iterator[str]:
    """What few sentences cost R1 and R2."""
    for row in findings.estimation:
        ahead = row.r2_ahead
        told = {1: "R2 is better", -1: "R1 is better", 0: "neither is better beyond the interval"}[ahead.sign]
        yield (
            f"With means of {row.sentences:,} sentences, a score of R1 lies {row.r1_error.value:.2f} points and one of "
            f"R2 {row.r2_error.value:.2f} from what all sentences give; R2 less R1 is {points(ahead)}: {told}."
        )


def reductions(findings: Findings) -> Iterator[str]:
    """What is kept at each size, and whether any type of task is below PCA."""
    for one in findings.retentions:
        if one.label == RIVAL or one.ahead == {}:
            yield f"{kept(one)}."
            continue
        below = [kind for kind, interval in one.ahead.items() if kind != "all" and interval.sign < 0]
        above = [kind for kind, interval in one.ahead.items() if kind != "all" and interval.sign > 0]
        told = [f"below PCA in {', '.join(below)}"] if below else []
        told += [f"above PCA in {', '.join(above)}"] if above else []
        yield f"{kept(one)}, {' and '.join(told) or 'no type of task beyond the interval from PCA'}."


def kept(one: Retention) -> str:
    """A reducer at a size."""
    return f"{one.label} at {share(one.share)} of the dimensions keeps {percent(one.mean)} of the score"


def of_geometry(findings: Findings) -> Iterator[str]:
    """Which intrinsic measure tells the scores."""
    if not findings.intrinsic:
        return
    ranked = sorted(findings.intrinsic.items(), key=lambda item: -item[1].spearman.value)
    each = "; ".join(f"{name.replace('_', ' ')} {bounded(found.spearman)}" for name, found in ranked)
    yield (
        f"Over {ranked[0][1].n} reductions, what is kept of the geometry goes with the mean score at ρ = {each} "
        "(GeoPres, Table 1: Spearman .94, angular .63, positional .50)."
    )


def across_languages(findings: Findings) -> Iterator[str]:
    """Whether other languages keep less than English."""
    labels = dict.fromkeys(one.label for one in findings.cross_lingual)
    for label in labels:
        some = [one.against_english for one in findings.cross_lingual if one.label == label]
        mean = sum(some) / len(some)
        yield (
            f"{label} keeps {100 * abs(mean):.1f} points of retention {'more' if mean >= 0 else 'less'} in other "
            f"languages than in English, from {100 * min(some):+.1f} to {100 * max(some):+.1f}."
        )


def counted(things: Sequence[object], noun: str) -> str:
    """So many of something."""
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def moved(interval: Interval) -> str:
    """Which side of zero an interval is on."""
    return {1: "a gain", -1: "a loss", 0: "not told from zero"}[interval.sign]


def points(interval: Interval) -> str:
    """Points with their interval."""
    bounds = "" if interval.low is None else f" [{interval.low:+.2f}, {interval.high:+.2f}]"
    return f"{interval.value:+.2f} points{bounds}"


def percent(interval: Interval) -> str:
    """A share with its interval."""
    if interval.low is None or interval.high is None:
        return f"{100 * interval.value:.1f} %"
    bounds = f" [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"
    return f"{100 * interval.value:.1f} %{bounds}"


def bounded(interval: Interval) -> str:
    """A correlation with its interval."""
    bounds = "" if interval.low is None or interval.high is None else f" [{interval.low:.2f}, {interval.high:.2f}]"
    return f"{interval.value:.2f}{bounds}"


def share(value: float) -> str:
    """A share of the dimensions."""
    halves = round(1 / value)
    return f"1/{halves}" if abs(value * halves - 1) < 0.01 else f"{100 * value:.0f} %"
