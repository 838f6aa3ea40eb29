"""Findings of an experiment: averages over targets, paired differences, intervals over seeds."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lathe.training.comparison import Array, Interval, mean_interval
from research.reze_experiment.results import Result
from research.reze_experiment.run import Experiment
from research.reze_experiment.settings import METHODS

PROPOSED = "reze"
"""Name of the proposed method, which is compared with all others."""
MEASURES = ("score", "label_accuracy")
"""Names of the measures that are averaged and compared."""
SHIFTS = ("drift", "isoscore")
"""Names of the measures of how far a condition has moved the encoder."""


@dataclass(frozen=True)
class Average:
    """Score × 100 of a method, averaged over targets, with an interval over seeds.

    Attributes:
        learning_rate: learning rate of both stages.
        rows: number n of fine-tuning rows; 0 is before fine-tuning.
        method: name of the method; see `conditions.py`.
        measure: `score` or `label_accuracy`.
        score: average with its interval.
        targets: number of targets averaged.
        seeds: number of seeds with results on all of these targets.
    """

    learning_rate: float
    rows: int
    method: str
    measure: str
    score: Interval
    targets: int
    seeds: int


@dataclass(frozen=True)
class Difference:
    """Difference between two methods in points (score × 100), paired by target and seed.

    Attributes:
        learning_rate: learning rate of both stages.
        rows: number n of fine-tuning rows; 0 is before fine-tuning.
        method: first method.
        rival: method that is subtracted.
        measure: `score` or `label_accuracy`.
        group: `all` targets, or the task of those compared.
        points: difference averaged over targets, with an interval over seeds.
        better: number of targets on which the mean difference over seeds is positive.
        targets: number of targets.
        seeds: number of seeds with results of both methods on all targets.
    """

    learning_rate: float
    rows: int
    method: str
    rival: str
    measure: str
    group: str
    points: Interval
    better: int
    targets: int
    seeds: int


@dataclass(frozen=True)
class Shift:
    """Change of the encoder by one condition before fine-tuning, averaged over targets and seeds.

    Attributes:
        learning_rate: learning rate of the pre-finetuning.
        method: name of the condition.
        drift: mean 1 − cosine to the base model on held-out text of the domain.
        isoscore: IsoScore of the vectors of that text.
        seconds_per_step: median duration of a training step; None without training.
    """

    learning_rate: float
    method: str
    drift: Interval
    isoscore: Interval
    seconds_per_step: float | None


@dataclass(frozen=True)
class Findings:
    """All findings of an experiment.

    Attributes:
        averages: average score of each method.
        differences: paired differences between REZE and the other methods.
        shifts: drift and isotropy of each condition.
    """

    averages: list[Average]
    differences: list[Difference]
    shifts: list[Shift]


class Scores:
    """Results of an experiment as data frames.

    Attributes:
        frame: a row for each result, with the fields of `Result` as columns; missing numbers are NaN.
        tables: scores × 100 by learning rate, rows and measure, with a row for each seed and a column for each pair of
            method and target.
        cells: pairs of learning rate and rows that have results, ascending.
        tasks: task of each target.
        methods: names of the methods, in order of appearance.
    """

    def __init__(self, results: Iterable[Result]) -> None:
        self.frame = pd.DataFrame(list(results)).astype(dict.fromkeys([*MEASURES, *SHIFTS, "seconds_per_step"], float))
        groups = list(self.frame.groupby(["learning_rate", "rows"]))
        self.tables = {
            (*cell, measure): 100 * group.pivot(index="seed", columns=["method", "target"], values=measure)
            for cell, group in groups
            for measure in MEASURES
        }
        self.cells = [cell for cell, _ in groups]
        self.tasks = dict(zip(self.frame["target"], self.frame["task"], strict=True))
        self.methods = list(self.frame["method"].unique())

    def stack_scores(
        self, rate: float, rows: int, methods: Sequence[str], measure: str, targets: Sequence[str]
    ) -> tuple[Array, list[int]]:
        """Return scores × 100 `(methods, targets, seeds)`, and the seeds: only those without a missing result.

        Args:
            rate: learning rate.
            rows: number of fine-tuning rows.
            methods: names of methods.
            measure: `score` or `label_accuracy`.
            targets: names of targets.
        """
        columns = pd.MultiIndex.from_product([methods, targets])
        whole = self.tables[rate, rows, measure].reindex(columns=columns).dropna()
        return whole.to_numpy().T.copy().reshape(len(methods), len(targets), len(whole)), list(whole.index)

    def list_common_targets(self, rate: float, rows: int, methods: Sequence[str], measure: str) -> list[str]:
        """Return the targets on which each of the methods has the measure for at least one seed."""
        there = set(self.tables[rate, rows, measure].dropna(axis=1, how="all").columns)
        return [target for target in self.tasks if all((method, target) in there for method in methods)]

    def list_methods(self, rate: float, rows: int) -> list[str]:
        """Return the methods with results at a learning rate and number of rows, in order of appearance."""
        there = {method for method, _ in self.tables[rate, rows, "score"].columns}
        return [method for method in self.methods if method in there]


def compute_findings(experiment: Experiment) -> Findings:
    """Compute averages, differences and shifts from all results of an experiment."""
    scores = Scores(experiment.results)
    return Findings(
        [one for key in scores.tables for one in average_methods(scores, *key)],
        [one for key in scores.tables for one in _compute_differences(scores, *key)],
        list(compute_shifts(scores)),
    )


def average_methods(scores: Scores, rate: float, rows: int, measure: str) -> list[Average]:
    """Average each method's scores over the targets that all methods have results on.

    The result is empty without any. Only seeds with results of all methods on all of these targets are used.
    """
    methods = scores.list_methods(rate, rows)
    targets = scores.list_common_targets(rate, rows, methods, measure)
    values, seeds = scores.stack_scores(rate, rows, methods, measure, targets)
    if not targets or not seeds:
        return []
    return [
        Average(rate, rows, method, measure, mean_interval(found.mean(axis=0)), len(targets), len(seeds))
        for method, found in zip(methods, values, strict=True)
    ]


def is_rival(method: str) -> bool:
    """Return whether a method is neither REZE nor a variant of it."""
    method = method.partition(", ")[0]
    return method in METHODS and method != PROPOSED


def _compute_differences(scores: Scores, rate: float, rows: int, measure: str) -> Iterator[Difference]:
    """Yield the paired differences of a measure between REZE and each other method, and of its variants to rivals.

    A rival is a method that is neither REZE nor a variant of it. Each difference is computed over all targets, and also
    per task if there is more than one task. There are none without results of REZE, and none of a group of targets for
    which no seed has all results of both methods.

    Args:
        scores: all results.
        rate: learning rate.
        rows: number of fine-tuning rows.
        measure: `score` or `label_accuracy`.
    """
    methods = scores.list_methods(rate, rows)
    if PROPOSED not in methods:
        return
    pairs = [(PROPOSED, rival) for rival in methods if rival != PROPOSED]
    pairs += [(m, r) for m in methods if m != PROPOSED and not is_rival(m) for r in methods if is_rival(r)]
    for method, rival in pairs:
        targets = scores.list_common_targets(rate, rows, [method, rival], measure)
        tasks = list(dict.fromkeys(scores.tasks[target] for target in targets))
        for group in ["all", *tasks] if len(tasks) > 1 else ["all"] * len(tasks):
            some = [target for target in targets if group in ("all", scores.tasks[target])]
            values, seeds = scores.stack_scores(rate, rows, [method, rival], measure, some)
            if seeds:
                by_target = values[0] - values[1]
                better = int((by_target.mean(axis=1) > 0).sum())
                points = mean_interval(by_target.mean(axis=0))
                yield Difference(rate, rows, method, rival, measure, group, points, better, len(some), len(seeds))


def compute_shifts(scores: Scores) -> Iterator[Shift]:
    """Yield, by learning rate, each condition's mean drift and IsoScore before fine-tuning, and its median step time.

    Only targets that some seed measured for all conditions count, and of the seeds those complete on these targets. A
    learning rate without such a seed yields nothing. The base model is among the conditions.
    """
    for rate, some in scores.frame.dropna(subset="drift").groupby("learning_rate"):
        methods = some["method"].unique()
        common = some.pivot_table(index="seed", columns="target", values="drift", aggfunc="count") == len(methods)
        common = common.loc[:, common.any()]
        whole = common.index[common.all(axis=1)]
        own = some[some["target"].isin(common.columns) & some["seed"].isin(whole)]
        for method in methods if len(own) else ():
            rows = own[own["method"] == method]
            by_seed = rows.groupby("seed")[list(SHIFTS)].mean()
            drift, isoscore = (mean_interval(by_seed[measure].to_numpy()) for measure in SHIFTS)
            seconds = float(rows["seconds_per_step"].median())
            yield Shift(rate, method, drift, isoscore, None if np.isnan(seconds) else seconds)
