"""Decision of an evaluation: the comparisons of encoders and chains, and the answer in one sentence."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lathe.training.comparison import Interval
from lathe.training.evaluation.comparison import (
    OUTCOMES,
    Comparison,
    Grid,
    System,
    Verdict,
    compare_scores,
    compare_systems,
    name_metric,
    name_unit,
)
from lathe.training.evaluation.methods import CONTROL
from lathe.training.evaluation.run import EvaluationResults
from lathe.training.reporting.text import format_count, format_half_width

MAX_NAMED = 6
"""Maximum number of comparisons that the sentence names."""


@dataclass(frozen=True)
class Decision:
    """Answer of an evaluation: which system to take, and a sentence that says why.

    Attributes:
        sentence: the answer.
        choice: the system to take: the first system, unless another system is better beyond doubt.
        comparison: comparison of the choice with the first system, or of the next best system if the choice is the
            first system; None if nothing was compared.
        comparisons: all comparisons of encoders and chains.
    """

    sentence: str
    choice: System
    comparison: Comparison | None
    comparisons: Sequence[Comparison] = field(default=(), repr=False)

    def to_fields(self) -> dict[str, object]:
        """Convert the decision to a dict with the sentence and the chosen system, for JSON.

        If systems were compared, the dict also has the compared systems, and the verdict of `comparison`: difference,
        interval, outcome, data set, metric and units.
        """
        fields: dict[str, object] = {"sentence": self.sentence, "choice": self.choice}
        if self.comparison is None:
            return fields

        verdict = self.comparison.verdict
        return fields | {
            "baseline": self.comparison.baseline,
            "compared": self.comparison.compared,
            "difference_points": verdict.difference.value,
            "low": verdict.difference.low,
            "high": verdict.difference.high,
            **{name: getattr(verdict, name) for name in ("outcome", "data_set", "metric", "unit", "units")},
        }

    def to_sentences(self) -> list[str]:
        """Return the answer, then a sentence for every comparison that the answer does not repeat."""
        sentences = map(describe_comparison, self.comparisons)
        return [self.sentence, *(sentence for sentence in sentences if sentence != self.sentence)]


def decide(results: EvaluationResults) -> Decision:
    """Compare all systems (encoder and method), and choose the first, unless another is better beyond doubt.

    Of the better systems, the system with the highest lower bound of the difference is chosen. Without comparisons, the
    decision is the first encoder with its raw vectors, and the sentence has the score. The sentence has the differences
    of at most `MAX_NAMED` comparisons with the first system, largest first.
    """
    comparisons = compare_systems(results)
    if not comparisons:
        return _describe_scores(results)

    first = comparisons[0].baseline
    candidates = sorted(
        (comparison for comparison in comparisons if comparison.baseline == first),
        key=lambda comparison: -comparison.verdict.difference.value,
    )
    better = [comparison for comparison in candidates if comparison.verdict.outcome == "better"]
    # By the lower bound: the largest gain may be the least certain one.
    leading = max(better, key=lambda comparison: comparison.verdict.difference.low or 0.0) if better else candidates[0]
    sentence = describe_comparison(leading) if len(candidates) == 1 else _describe_several(candidates)

    return Decision(sentence, leading.compared if better else first, leading, comparisons)


def describe_comparison(comparison: Comparison) -> str:
    """Write a sentence that says whether the compared system is better, by how many points, and on which data.

    Over several data sets, it also counts the outcomes on single data sets.
    """
    verdict, name, baseline = comparison.verdict, comparison.name, comparison.baseline_name
    data = _describe_data(verdict)
    metric = f" of {verdict.metric}" if verdict.metric else ""
    points = f"{_format_points(verdict.difference)} points{metric}"

    if verdict.outcome != "undecided":
        sentence = f"{name} is {verdict.outcome} than {baseline} by {points} {data}"
    elif verdict.difference.low is not None:
        sentence = f"Whether {name} is better than {baseline} is not decided {data}: {points}"
    elif verdict.difference.value:
        sentence = f"Whether {name} is better than {baseline} is not decided {data}: {points}, without an interval"
    else:
        sentence = f"{name} scores the same as {baseline} {data}"

    return f"{sentence}; {_count_outcomes(comparison)}." if comparison.between else f"{sentence}."


def _describe_several(comparisons: Sequence[Comparison]) -> str:
    """Write one sentence about several comparisons with the same baseline. It names at most `MAX_NAMED` of them."""
    common = comparisons[0].verdict
    parts = []
    for comparison in comparisons[:MAX_NAMED]:
        verdict, points = comparison.verdict, _format_points(comparison.verdict.difference)
        is_common = (verdict.data_set, verdict.units) == (common.data_set, common.units)
        where = "" if is_common else f" {_describe_data(verdict)}"
        if verdict.outcome == "undecided":
            parts.append(f"{comparison.name} shows no difference ({points}{where})")
        else:
            parts.append(f"{comparison.name} is {verdict.outcome} by {points}{where}")

    if len(comparisons) > MAX_NAMED:
        parts.append(f"{format_count(len(comparisons) - MAX_NAMED, 'other')} scored lower")

    metric = f" of {common.metric}" if common.metric else ""
    against = comparisons[0].baseline_name
    if comparisons[0].baseline.encoder == comparisons[0].compared.encoder:
        against += f" of {comparisons[0].baseline.encoder}"

    data = _describe_data(common)
    return f"{data[0].upper()}{data[1:]}, in points{metric} against {against}: {', '.join(parts)}."


def _describe_data(verdict: Verdict) -> str:
    """Write the data of a verdict as a phrase, such as "on STS12 (400 pairs)" or "on average over 3 data sets"."""
    if verdict.data_set is None:
        return f"on average over {format_count(verdict.units, 'data set')}"
    return f"on {verdict.data_set}" + (f" ({count_units(verdict.units, verdict.unit)})" if verdict.units else "")


def count_units(count: int, unit: str) -> str:
    """Format a number of units with the name of the unit, such as "400 queries" or "1 pair"."""
    return f"{count:,} queries" if unit == "query" and count != 1 else f"{count:,} {unit}{'' if count == 1 else 's'}"


def _count_outcomes(comparison: Comparison) -> str:
    counts = Counter(verdict.outcome for verdict in comparison.within)
    counted = [f"{outcome} on {counts[outcome]}" for outcome in OUTCOMES if counts[outcome]]
    return "by each data set's own units, " + ", ".join(counted)


def _format_points(difference: Interval) -> str:
    """Format a difference in points with half the length of its interval, such as "1.9 ± 0.8".

    A sign is written only if the interval contains 0, because the text around it then says neither better nor worse.
    """
    magnitude = Interval(abs(difference.value), difference.low, difference.high) if difference.sign else difference
    return format_half_width(magnitude, "+.1f" if difference.value and not difference.sign else ".1f", " ± ")


def _describe_scores(results: EvaluationResults) -> Decision:
    """Build the decision of an evaluation that compared nothing: the first encoder with its raw vectors.

    The sentence has the mean score over all data sets. With a single data set, it also has the score's interval.
    """
    grid = Grid(results)
    encoder = next(iter(grid.encoders))
    tasks = [task for task in grid.tasks if (encoder, CONTROL, task) in grid.values]
    system, nothing = System(encoder), "Nothing was compared with it: name another encoder, or a chain."
    if not tasks:
        return Decision(f"{encoder} has no score.", system, None)

    mean = 100 * float(np.mean(grid.control_scores(encoder, tasks)))
    if len(tasks) > 1:
        sentence = f"{encoder} scores {mean:.1f} points on average over {len(tasks)} data sets. {nothing}"
        return Decision(sentence, system, None)

    task = grid.tasks[tasks[0]]
    score = next(s for s in results.scores if (s.encoder, s.method, s.task) == (encoder, CONTROL, task.task))
    points, units = f"{mean:.1f}", ""

    if len(score.values):
        values = np.asarray(score.values)
        points = format_half_width(compare_scores(np.zeros(len(values)), values, mean), ".1f", " ± ")
        units = f" ({count_units(score.units, name_unit(task))})"

    sentence = f"{encoder} scores {points} points of {name_metric(task)} on {task.task}{units}. {nothing}"
    return Decision(sentence, system, None)
