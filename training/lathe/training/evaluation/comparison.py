"""Paired comparisons of encoders and methods, within each data set and over data sets.

Within a data set, the differences of its units (units.py) are tested: would other queries, texts or pairs of the same
kind give another verdict? Over several data sets, the differences of their scores are: would other data sets? Both
intervals are Student's, of the mean of paired differences.
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
"""Name of a data set's units by mteb's type of the task. Those of other types are texts."""
METRIC_NAMES = {
    "ndcg_at_10": "nDCG@10",
    "map_at_1000": "MAP",
    "cosine_spearman": "Spearman's ρ",
    "max_ap": "average precision",
    "v_measure": "V-measure",
    "f1": "F1",
}
"""Name of a main score for reading. Others are called as mteb calls them."""


def name_metric(task: TaskDescription) -> str:
    """Return the name of a task's main score for reading, such as "nDCG@10"."""
    return METRIC_NAMES.get(task.main_score, task.main_score)


def name_unit(task: TaskDescription) -> str:
    """Return the name of a task's units: `query`, `text` or `pair`."""
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
        """List the distinct names of the methods in these groups, in the order they were requested.

        Groups are `control`, `chain` and `rescored`.
        """
        distinct = [m.name for result in self.encoders.values() for m in result.methods.values() if m.group in groups]
        return list(dict.fromkeys(distinct))

    def control_scores(self, encoder: str, tasks: Sequence[str]) -> Array:
        """Return the scores `(n,)` of an encoder's raw vectors on the tasks, in the order of the tasks.

        Raises:
            KeyError: if one is missing.
        """
        return np.array([self.values[encoder, CONTROL, task] for task in tasks])

    def group_by_type(self, tasks: Sequence[str]) -> dict[str, list[int]]:
        """Group tasks by mteb's type of task, such as `Retrieval`.

        Returns, for each type, the positions of its tasks in the given list.
        """
        groups: dict[str, list[int]] = {}
        for position, task in enumerate(tasks):
            groups.setdefault(self.tasks[task].type, []).append(position)
        return groups


@dataclass(frozen=True)
class System:
    """Encoder with a method, which is compared with another one.

    `label` is the method's name, `control` for raw vectors.
    """

    encoder: str
    label: str = CONTROL

    def distinguish_from(self, system: "System") -> str:
        """Return a name of this system that tells it from another one.

        It is the method if both have the same encoder, else the encoder and, unless it is of raw vectors, the method.
        """
        if self.encoder == system.encoder:
            return "the raw vectors" if self.label == CONTROL else self.label
        return self.encoder if self.label == CONTROL else f"{self.label} on {self.encoder}"


@dataclass(frozen=True)
class Verdict:
    """Difference of two systems' scores on one data set, or on average over several data sets, with its interval.

    Attributes:
        data_set: name of the data set; None over several.
        metric: name of the score; empty if the data sets have several.
        unit: `query`, `text` or `pair` within a data set; `data set` over several.
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
        """Whether the compared system is better or worse.

        It is undecided if the interval contains 0, or there is none.
        """
        return format_by_sign(self.difference, *OUTCOMES)


@dataclass(frozen=True)
class Comparison:
    """Comparison of a system (encoder and method) with a baseline, on each data set and over all.

    Attributes:
        baseline: what is compared with.
        compared: what is compared.
        within: verdict on each data set that both completed, by its units.
        between: verdict over these data sets; None if there is only one.
    """

    baseline: System
    compared: System
    within: Sequence[Verdict]
    between: Verdict | None

    @property
    def verdicts(self) -> list[Verdict]:
        """Verdict over all data sets if there are several, then those on each."""
        return [self.between, *self.within] if self.between else [*self.within]

    @property
    def verdict(self) -> Verdict:
        """Verdict over all data sets, or on the only one."""
        return self.verdicts[0]

    @property
    def name(self) -> str:
        """Name of the compared system."""
        return self.compared.distinguish_from(self.baseline)

    @property
    def baseline_name(self) -> str:
        """Name of the baseline."""
        return self.baseline.distinguish_from(self.compared)


def compare_systems(results: EvaluationResults) -> list[Comparison]:
    """Compare pairs of systems (encoder and method), and return one comparison for each pair.

    Encoders are compared with the first encoder, methods with the raw vectors, and chains of transforms with the first
    chain. Pairs without a data set in common are left out.
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
    """Return the difference of two scores in points with its 95 % interval.

    The interval is estimated from the paired values of single queries, texts or pairs under both systems. It is
    Student's, of the mean of n differences. There are no bounds for one unit, or if all differences are equal.

    Args:
        baseline: values of the units under the baseline, `(n,)`.
        compared: values of the same units under the compared system, `(n,)`.
        difference: difference of the two scores in points, in the middle of the interval.
    """
    interval = mean_interval(100 * (compared - baseline))
    if interval.reach is None:
        return Interval(difference, None, None)
    # Values may be a jackknife's, whose mean differs from the score: the interval is moved to the score.
    return Interval(difference, difference - interval.reach, difference + interval.reach)


def _list_pairs(grid: Grid) -> Iterator[tuple[System, System]]:
    """Yield the pairs of systems to compare, each as (baseline, compared), see `compare_systems`."""
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
    """Compare the scores of two systems on one data set."""
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
