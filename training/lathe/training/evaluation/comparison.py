"""Paired comparisons of encoders and methods, within a data set and over several data sets.

Within a data set, the differences between units are tested (units.py): would other queries, texts or pairs of the same
kind give another verdict? Over several data sets, the differences between scores are tested: would other data sets give
another verdict? Both intervals are Student's t intervals of the mean of paired differences.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lathe.training.comparison import Array, Interval, mean_interval
from lathe.training.evaluation.methods import CONTROL
from lathe.training.evaluation.run import EncoderResult, EvaluationResults
from lathe.training.evaluation.worker import Score, TaskDescription
from lathe.training.reporting.text import format_by_sign

OUTCOMES = ("better", "worse", "undecided")
UNIT_NAMES = {
    "Retrieval": "query",
    "Reranking": "query",
    "BitextMining": "pair",
    "STS": "pair",
    "PairClassification": "pair",
}
"""Name of a data set's units by mteb's type of the task. The units of other types are texts."""
METRIC_NAMES = {
    "ndcg_at_10": "nDCG@10",
    "map_at_1000": "MAP",
    "cosine_spearman": "Spearman's ρ",
    "max_ap": "average precision",
    "v_measure": "V-measure",
    "f1": "F1",
}
"""Readable name of a main score by mteb's name. Other main scores keep mteb's name."""


def name_metric(task: TaskDescription) -> str:
    """Return the readable name of a task's main score, such as "nDCG@10", or mteb's name without one."""
    return METRIC_NAMES.get(task.main_score, task.main_score)


def name_unit(task: TaskDescription) -> str:
    """Return the name of a task's units: `query`, `pair`, or `text` by default."""
    return UNIT_NAMES.get(task.type, "text")


class Grid:
    """Scores of an evaluation by encoder, method and task, without failed tasks and scores.

    Args:
        results: results of the evaluation.

    Attributes:
        tasks: tasks without an error, by name.
        encoders: results by encoder name.
        values: scores by (encoder, method, task).
    """

    def __init__(self, results: EvaluationResults) -> None:
        self.tasks: dict[str, TaskDescription] = {task.task: task for task in results.tasks if task.error is None}
        self.encoders: Mapping[str, EncoderResult] = {result.member.name: result for result in results.encoders}
        self.values: dict[tuple[str, str, str], float] = {
            (score.encoder, score.method, score.task): score.score
            for score in results.scores
            if score.score is not None and score.task in self.tasks
        }

    def list_method_names(self, *groups: str) -> list[str]:
        """List the distinct names of the methods in the given groups, in the order of the request.

        Groups are `control`, `chain` and `rescored`.
        """
        distinct = [m.name for result in self.encoders.values() for m in result.methods.values() if m.group in groups]
        return list(dict.fromkeys(distinct))

    def control_scores(self, encoder: str, tasks: Sequence[str]) -> Array:
        """Return the scores `(n,)` of an encoder's raw vectors on the given tasks, in the order of the tasks.

        Raises:
            KeyError: if a score is missing.
        """
        return np.array([self.values[encoder, CONTROL, task] for task in tasks])

    def group_by_type(self, tasks: Sequence[str]) -> dict[str, list[int]]:
        """Group the positions of the given tasks by mteb's type of task, such as `Retrieval`."""
        groups: dict[str, list[int]] = {}
        for position, task in enumerate(tasks):
            groups.setdefault(self.tasks[task].type, []).append(position)
        return groups


@dataclass(frozen=True)
class System:
    """An encoder with a method, as one party of a comparison.

    Attributes:
        encoder: name of the encoder.
        label: name of the method; `control` for raw vectors.
    """

    encoder: str
    label: str = CONTROL

    def distinguish_from(self, system: "System") -> str:
        """Name this system so that a reader can tell it from another system.

        With the same encoder, the name is the method ("the raw vectors" for raw vectors). With different encoders, it
        is the encoder, preceded by "METHOD on" unless the method is raw vectors.
        """
        if self.encoder == system.encoder:
            return "the raw vectors" if self.label == CONTROL else self.label
        return self.encoder if self.label == CONTROL else f"{self.label} on {self.encoder}"


@dataclass(frozen=True)
class Verdict:
    """Difference between two systems' scores on a data set, or on average over several data sets, with its interval.

    Attributes:
        data_set: name of the data set; None over several data sets.
        metric: name of the score; empty if the data sets have different scores.
        unit: `query`, `text` or `pair` within a data set; `data set` over several data sets.
        units: number of units; 0 if the values of units are not known, so that there is no interval.
        scores: scores × 100 of the baseline and of the compared system.
        difference: compared system minus baseline in points (hundredths of a score), with its 95 % interval.
    """

    data_set: str | None
    metric: str
    unit: str
    units: int
    scores: tuple[float, float]
    difference: Interval

    @property
    def outcome(self) -> str:
        """`better`, `worse` or `undecided`: whether the compared system is better than the baseline.

        The outcome is `undecided` if the interval contains 0, or without an interval.
        """
        return format_by_sign(self.difference, *OUTCOMES)


@dataclass(frozen=True)
class Comparison:
    """Comparison of a system (encoder and method) with a baseline, on single data sets and over all data sets.

    Attributes:
        baseline: system to compare with.
        compared: system that is compared.
        within: verdicts on the data sets that both systems completed.
        between: verdict over these data sets; None with a single data set.
    """

    baseline: System
    compared: System
    within: Sequence[Verdict]
    between: Verdict | None

    @property
    def verdicts(self) -> list[Verdict]:
        """All verdicts: `between` first, unless it is None, then `within`."""
        return [self.between, *self.within] if self.between else [*self.within]

    @property
    def verdict(self) -> Verdict:
        """Verdict over all data sets, or on the only data set."""
        return self.verdicts[0]

    @property
    def name(self) -> str:
        """Name that tells the compared system from the baseline."""
        return self.compared.distinguish_from(self.baseline)

    @property
    def baseline_name(self) -> str:
        """Name that tells the baseline from the compared system."""
        return self.baseline.distinguish_from(self.compared)


def compare_systems(results: EvaluationResults) -> list[Comparison]:
    """Compare encoders with the first, methods with raw vectors, and chains with the first, on common data sets.

    The comparisons are in this order.
    """
    grid = Grid(results)
    by_cell = {(score.encoder, score.method, score.task): score for score in results.scores}
    comparisons = []
    for baseline, compared in _list_pairs(grid):
        within = []
        for name, task in grid.tasks.items():
            keys = [(system.encoder, system.label, name) for system in (baseline, compared)]
            if all(key in grid.values for key in keys):
                within.append(_compare_within(task, by_cell[keys[0]], by_cell[keys[1]]))
        if within:
            comparisons.append(Comparison(baseline, compared, within, _average(within) if len(within) > 1 else None))

    return comparisons


def compare_scores(baseline: Array, compared: Array, difference: float) -> Interval:
    """Estimate the 95 % interval of a difference between two scores, from paired values of queries, texts or pairs.

    The interval is Student's t interval of the mean of n paired differences × 100, moved so that its middle is
    `difference`. Without bounds are a single unit, and differences that are all equal.

    Args:
        baseline: values of the units under the baseline, `(n,)`.
        compared: values of the same units under the compared system, `(n,)`.
        difference: difference of the two scores in points.
    """
    interval = mean_interval(100 * (compared - baseline))
    if interval.reach is None:
        return Interval(difference, None, None)
    # Values may be a jackknife's, whose mean differs from the score: the interval is moved to the score.
    return Interval(difference, difference - interval.reach, difference + interval.reach)


def _list_pairs(grid: Grid) -> Iterator[tuple[System, System]]:
    """Yield the pairs `(baseline, compared)` of systems that `compare_systems` compares."""
    first, *later_encoders = grid.encoders
    for later in later_encoders:
        yield System(first), System(later)

    chains = grid.list_method_names("chain")
    for encoder in grid.encoders:
        for label in grid.list_method_names("chain", "rescored"):
            yield System(encoder), System(encoder, label)
        for label in chains[1:]:
            yield System(encoder, chains[0]), System(encoder, label)


def _compare_within(task: TaskDescription, baseline: Score, compared: Score) -> Verdict:
    """Compare the scores of two systems on one data set, without an interval if the values of units do not pair up."""
    assert baseline.score is not None and compared.score is not None  # failed ones are in no grid
    before, after = 100 * baseline.score, 100 * compared.score
    difference = Interval(after - before, None, None)
    units = 0
    # Differences are paired by unit: both systems need values of the same units.
    if len(baseline.values) == len(compared.values) > 0:
        difference = compare_scores(np.asarray(baseline.values), np.asarray(compared.values), after - before)
        units = compared.units

    return Verdict(task.task, name_metric(task), name_unit(task), units, (before, after), difference)


def _average(within: Sequence[Verdict]) -> Verdict:
    # Each data set is one unit here, whatever its size: the question is whether other data sets would agree.
    metrics = {verdict.metric for verdict in within}
    differences = np.array([verdict.difference.value for verdict in within])
    before, after = (float(np.mean([verdict.scores[side] for verdict in within])) for side in (0, 1))
    metric = metrics.pop() if len(metrics) == 1 else ""
    return Verdict(None, metric, "data set", len(within), (before, after), mean_interval(differences))
