"""Findings as plain sentences: what is significant, what is not, and what cannot be decided."""

from collections.abc import Iterator, Sequence

from training.evaluation.findings import Findings
from training.evaluation.reduction import RIVAL, Retention
from training.evaluation.statistics import Interval

R2 = "R2"
"""Label of the method whose gain is compared with ‖μ‖ and whose large effects are counted."""
PUBLISHED = {
    "classification t": " (the mean-bias paper: r = .72 [.47, .86] over 38 models)",
    "mean difference": "",
}
"""Correlations with ‖μ‖ that are reported, with what the mean-bias paper found."""


def sentences(findings: Findings) -> list[str]:
    """Return all sentences of an evaluation."""
    return [
        *debiasing(findings),
        *with_the_norm(findings),
        *by_sentences(findings),
        *reductions(findings),
        *of_geometry(findings),
        *across_languages(findings),
    ]


def debiasing(findings: Findings) -> Iterator[str]:
    """Yield sentences that compare each method with raw vectors, R2 with R1, and count R2's large effects."""
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
    """Yield sentences on the correlation of R2's gain with ‖μ‖."""
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
    """Yield sentences on how much R1 and R2 lose if their mean is estimated from few sentences."""
    for row in findings.estimation:
        ahead = row.r2_ahead
        told = {1: "R2 is better", -1: "R1 is better", 0: "neither is better beyond the interval"}[ahead.sign]
        yield (
            f"With means of {row.sentences:,} sentences, a score of R1 lies {row.r1_error.value:.2f} points and one of "
            f"R2 {row.r2_error.value:.2f} from what all sentences give; R2 less R1 is {points(ahead)}: {told}."
        )


def reductions(findings: Findings) -> Iterator[str]:
    """Yield sentences on the retained share of each reduction, and on the types of tasks where it differs from PCA."""
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
    """Return a clause on the share of the score that a reducer retains at its share of the dimensions."""
    return f"{one.label} at {share(one.share)} of the dimensions keeps {percent(one.mean)} of the score"


def of_geometry(findings: Findings) -> Iterator[str]:
    """Yield a sentence on how each intrinsic measure correlates with the mean score; nothing if not measured."""
    if not findings.intrinsic:
        return
    ranked = sorted(findings.intrinsic.items(), key=lambda item: -item[1].spearman.value)
    each = "; ".join(f"{name.replace('_', ' ')} {bounded(found.spearman)}" for name, found in ranked)
    yield (
        f"Over {ranked[0][1].n} reductions, what is kept of the geometry goes with the mean score at ρ = {each} "
        "(GeoPres, Table 1: Spearman .94, angular .63, positional .50)."
    )


def across_languages(findings: Findings) -> Iterator[str]:
    """Yield sentences on whether reducers retain less in other languages than in English."""
    labels = dict.fromkeys(one.label for one in findings.cross_lingual)
    for label in labels:
        some = [one.against_english for one in findings.cross_lingual if one.label == label]
        mean = sum(some) / len(some)
        yield (
            f"{label} keeps {100 * abs(mean):.1f} points of retention {'more' if mean >= 0 else 'less'} in other "
            f"languages than in English, from {100 * min(some):+.1f} to {100 * max(some):+.1f}."
        )


def counted(things: Sequence[object], noun: str) -> str:
    """Format the number of things with a noun, plural unless it is 1."""
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def moved(interval: Interval) -> str:
    """Return "a gain", "a loss" or "not told from zero", by the side of zero on which the interval lies."""
    return {1: "a gain", -1: "a loss", 0: "not told from zero"}[interval.sign]


def points(interval: Interval) -> str:
    """Format a difference in points with its interval, as "+1.23 points [+0.50, +2.00]"."""
    bounds = "" if interval.low is None else f" [{interval.low:+.2f}, {interval.high:+.2f}]"
    return f"{interval.value:+.2f} points{bounds}"


def percent(interval: Interval) -> str:
    """Format a share as per cent with its interval, as "12.3 % [10.0, 15.0]"."""
    if interval.low is None or interval.high is None:
        return f"{100 * interval.value:.1f} %"
    bounds = f" [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"
    return f"{100 * interval.value:.1f} %{bounds}"


def bounded(interval: Interval) -> str:
    """Format a correlation with its interval, as "0.12 [0.05, 0.20]"."""
    bounds = "" if interval.low is None or interval.high is None else f" [{interval.low:.2f}, {interval.high:.2f}]"
    return f"{interval.value:.2f}{bounds}"


def share(value: float) -> str:
    """Format a share of the dimensions as "1/4", or in per cent if it is no such fraction."""
    halves = round(1 / value)
    return f"1/{halves}" if abs(value * halves - 1) < 0.01 else f"{100 * value:.0f} %"
