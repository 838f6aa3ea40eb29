"""Summary of the findings in sentences: what is significant, what is not, and what cannot be decided."""

from collections.abc import Iterator

from training.evaluation.findings import Findings
from training.evaluation.reduction import RIVAL, Retention
from training.evaluation.statistics import Interval
from training.reporting.text import format_count, format_fraction, format_interval, format_percent, format_points

R2 = "R2"
"""Label of the method whose gain is compared with ‖μ‖ and whose large effects are counted."""
PUBLISHED = {
    "classification t": " (the mean-bias paper: r = .72 [.47, .86] over 38 models)",
    "mean difference": "",
}
"""Correlations with ‖μ‖ that are reported, with what the mean-bias paper found."""


def summarize(findings: Findings) -> list[str]:
    """Return all sentences of an evaluation."""
    return [
        *_debiasing_sentences(findings),
        *_norm_sentences(findings),
        *_estimation_sentences(findings),
        *_reduction_sentences(findings),
        *_geometry_sentences(findings),
        *_language_sentences(findings),
    ]


def _debiasing_sentences(findings: Findings) -> Iterator[str]:
    """Yield sentences that compare each method with raw vectors, R2 with R1, and count R2's large effects."""
    for label in findings.labels:
        if label not in findings.overall:
            continue
        tests = [cell.test for cell in findings.cells if cell.label == label]
        verdicts = [test.verdict for test in tests]
        encoders = format_count(len(tests), "encoder")
        counts = f"better on {verdicts.count('win')}, worse on {verdicts.count('loss')} of {encoders}"
        change = findings.overall[label]
        yield f"{label} changes the score by {format_points(change)}: {_describe_change(change)}; {counts} (|t| > 2)."
    for family, count in findings.head_to_head.items():
        yield (
            f"In {family.lower()}, R2's t is above R1's on {count['ahead']} and below on {count['behind']} of "
            f"{count['of']} encoders (the mean-bias paper: retrieval 35 of 38, classification 23 of 38 above)."
        )
    effects = [effect for effect in findings.large_effects if effect.label == R2]
    if R2 in findings.labels:
        up = sum(effect.difference > 0 for effect in effects)
        scores = format_count(len(effects), "score")
        yield f"R2 changes {scores} by more than .1 and 2 %: {up} up, {len(effects) - up} down."


def _norm_sentences(findings: Findings) -> Iterator[str]:
    """Yield sentences on the correlation of R2's gain with ‖μ‖."""
    for what, correlation in findings.norm_correlations.get(R2, {}).items():
        if correlation is None or what not in PUBLISHED:
            continue
        r, n = correlation.pearson, correlation.n
        told = {1: "it grows with ‖μ‖", -1: "it falls with ‖μ‖", 0: "no relation can be told"}[r.sign]
        yield (
            f"R2's {what} against ‖μ‖ over {n} encoders: r = {format_interval(r)}, {told}{PUBLISHED[what]}. "
            "The encoders are resampled, as if they had nothing in common."
        )


def _estimation_sentences(findings: Findings) -> Iterator[str]:
    """Yield sentences on how much R1 and R2 lose if their mean is estimated from few sentences."""
    for row in findings.estimation:
        ahead = row.r2_ahead
        told = {1: "R2 is better", -1: "R1 is better", 0: "neither is better beyond the interval"}[ahead.sign]
        yield (
            f"With means of {row.sentences:,} sentences, a score of R1 lies {row.r1_error.value:.2f} points and one of "
            f"R2 {row.r2_error.value:.2f} from what all sentences give; R2 less R1 is {format_points(ahead)}: {told}."
        )


def _reduction_sentences(findings: Findings) -> Iterator[str]:
    """Yield sentences on the retained share of each reduction, and on the types of tasks where it differs from PCA."""
    for one in findings.retentions:
        if one.label == RIVAL or one.ahead == {}:
            yield f"{_retention_clause(one)}."
            continue
        below = [kind for kind, interval in one.ahead.items() if kind != "all" and interval.sign < 0]
        above = [kind for kind, interval in one.ahead.items() if kind != "all" and interval.sign > 0]
        told = [f"below PCA in {', '.join(below)}"] if below else []
        told += [f"above PCA in {', '.join(above)}"] if above else []
        yield f"{_retention_clause(one)}, {' and '.join(told) or 'no type of task beyond the interval from PCA'}."


def _retention_clause(one: Retention) -> str:
    """Return a clause on the share of the score that a reducer retains at its share of the dimensions."""
    return (
        f"{one.label} at {format_fraction(one.share)} of the dimensions keeps {format_percent(one.mean)} of the score"
    )


def _geometry_sentences(findings: Findings) -> Iterator[str]:
    """Yield a sentence on how each intrinsic measure correlates with the mean score; nothing if not measured."""
    if not findings.intrinsic:
        return
    ranked = sorted(findings.intrinsic.items(), key=lambda item: -item[1].spearman.value)
    each = "; ".join(f"{name.replace('_', ' ')} {format_interval(found.spearman)}" for name, found in ranked)
    yield (
        f"Over {ranked[0][1].n} reductions, what is kept of the geometry goes with the mean score at ρ = {each} "
        "(GeoPres, Table 1: Spearman .94, angular .63, positional .50)."
    )


def _language_sentences(findings: Findings) -> Iterator[str]:
    """Yield sentences on whether reducers retain less in other languages than in English."""
    labels = dict.fromkeys(one.label for one in findings.cross_lingual)
    for label in labels:
        some = [one.against_english for one in findings.cross_lingual if one.label == label]
        mean = sum(some) / len(some)
        yield (
            f"{label} keeps {100 * abs(mean):.1f} points of retention {'more' if mean >= 0 else 'less'} in other "
            f"languages than in English, from {100 * min(some):+.1f} to {100 * max(some):+.1f}."
        )


def _describe_change(difference: Interval) -> str:
    """Return "a gain", "a loss" or "not told from zero", by the side of zero on which the interval lies."""
    return {1: "a gain", -1: "a loss", 0: "not told from zero"}[difference.sign]
