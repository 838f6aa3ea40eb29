"""Findings of an experiment: averages over targets, paired differences, intervals over seeds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from training.evaluation.statistics import NEGLIGIBLE, Array, Interval
from training.research.reze_experiment.results import Result
from training.research.reze_experiment.run import Experiment
from training.research.reze_experiment.settings import METHODS

CONFIDENCE = 0.95
"""Confidence level of the intervals."""
PROPOSED = "reze"
"""Name of the proposed method, which is compared with all others."""
MEASURES = ("score", "linear_probe")
"""Names of the measures that are averaged and compared."""


@dataclass(frozen=True)
class Average:
    """Score × 100 of a method, averaged over targets, with an interval over seeds.

    Attributes:
        learning_rate: learning rate of both stages.
        rows: number n of fine-tuning rows; 0 is before fine-tuning.
        method: name of the method; see `arms.py`.
        measure: `score` or `linear_probe`.
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
        measure: `score` or `linear_probe`.
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
    """Index of results by learning rate, rows, method, target and seed.

    Attributes:
        values: `score` and `linear_probe` by that key.
        tasks: task of each target.
        methods: names of the methods, in order of appearance.
        rates: learning rates, ascending.
        rows: numbers of fine-tuning rows, ascending.
    """

    def __init__(self, results: Iterable[Result]) -> None:
        self.results = list(results)
        self.values = {
            (r.learning_rate, r.rows, r.method, r.target, r.seed): {"score": r.score, "linear_probe": r.linear_probe}
            for r in self.results
        }
        self.tasks = {r.target: r.task for r in self.results}
        self.methods = list(dict.fromkeys(r.method for r in self.results))
        self.rates = sorted({r.learning_rate for r in self.results})
        self.rows = sorted({r.rows for r in self.results})

    def matrix(
        self, rate: float, rows: int, methods: Sequence[str], measure: str, targets: Sequence[str]
    ) -> tuple[Array, list[int]]:
        """Return scores × 100 `(methods, targets, seeds)`, and the seeds: only those without a missing result.

        Args:
            rate: learning rate.
            rows: number of fine-tuning rows.
            methods: names of methods.
            measure: `score` or `linear_probe`.
            targets: names of targets.
        """
        seeds = sorted({seed for r, n, m, _, seed in self.values if r == rate and n == rows and m in methods})
        whole = [
            seed
            for seed in seeds
            if all(self.value(rate, rows, m, t, seed, measure) is not None for m in methods for t in targets)
        ]
        found = [
            [[100 * (self.value(rate, rows, m, t, seed, measure) or 0.0) for seed in whole] for t in targets]
            for m in methods
        ]
        return np.array(found, float).reshape(len(methods), len(targets), len(whole)), whole

    def value(self, rate: float, rows: int, method: str, target: str, seed: int, measure: str) -> float | None:
        """Return one score, as a share of 1; None if it was not measured."""
        return self.values.get((rate, rows, method, target, seed), {}).get(measure)

    def targets_of(self, rate: float, rows: int, methods: Sequence[str], measure: str) -> list[str]:
        """Return the targets on which each of the methods has the measure for at least one seed."""
        there = {
            (m, t) for (r, n, m, t, _), v in self.values.items() if (r, n) == (rate, rows) and v[measure] is not None
        }
        return [target for target in self.tasks if all((method, target) in there for method in methods)]

    def measured(self, rate: float, rows: int) -> list[str]:
        """Return the methods with results at a learning rate and number of rows, in order of appearance."""
        there = {m for r, n, m, _, _ in self.values if (r, n) == (rate, rows)}
        return [method for method in self.methods if method in there]


def compute_findings(experiment: Experiment) -> Findings:
    """Compute averages, differences and shifts from all results of an experiment."""
    scores = Scores(experiment.results)
    cells = [(rate, rows) for rate in scores.rates for rows in scores.rows]
    averages = [one for cell in cells for measure in MEASURES for one in average_methods(scores, *cell, measure)]
    differences = [
        one for cell in cells for measure in MEASURES for one in _compute_differences(scores, *cell, measure)
    ]
    return Findings(averages, differences, compute_shifts(scores))


def average_methods(scores: Scores, rate: float, rows: int, measure: str) -> list[Average]:
    """Average each method's scores over the targets that all methods have results on; empty without any.

    Only seeds with results of all methods on all of these targets are used.
    """
    methods = scores.measured(rate, rows)
    targets = scores.targets_of(rate, rows, methods, measure)
    values, seeds = scores.matrix(rate, rows, methods, measure, targets)
    if not targets or not seeds:
        return []
    return [
        Average(rate, rows, method, measure, average_over_seeds(found.mean(axis=0)), len(targets), len(seeds))
        for method, found in zip(methods, values, strict=True)
    ]


def is_rival(method: str) -> bool:
    """Return whether a method is neither REZE nor a variant of it."""
    method = method.partition(", ")[0]
    return method in METHODS and method != PROPOSED


def _compute_differences(scores: Scores, rate: float, rows: int, measure: str) -> list[Difference]:
    """Compute the paired differences of a measure between REZE and each other method, and of its variants to rivals.

    A rival is a method that is neither REZE nor a variant of it. Each difference is computed over all targets, and also
    per task if there is more than one task. Empty without results of REZE.

    Args:
        scores: all results.
        rate: learning rate.
        rows: number of fine-tuning rows.
        measure: `score` or `linear_probe`.
    """
    methods = scores.measured(rate, rows)
    if PROPOSED not in methods:
        return []
    pairs = [(PROPOSED, rival) for rival in methods if rival != PROPOSED]
    pairs += [(m, r) for m in methods if m != PROPOSED and not is_rival(m) for r in methods if is_rival(r)]
    found = []
    for method, rival in pairs:
        targets = scores.targets_of(rate, rows, [method, rival], measure)
        groups = {"all": targets}
        for target in targets:
            groups.setdefault(scores.tasks[target], []).append(target)
        for group, some in groups.items():
            if some and (group == "all" or len(groups) > 2):
                found += _compare_pair(scores, (rate, rows, method, rival, measure, group), some)
    return found


def _compare_pair(
    scores: Scores, of: tuple[float, int, str, str, str, str], targets: Sequence[str]
) -> list[Difference]:
    """Compute one paired difference as a one-item list; empty if no seed has results of both methods on all targets.

    Args:
        scores: all results.
        of: learning rate, rows, method, rival, measure and group of the difference.
        targets: targets of the group.
    """
    rate, rows, method, rival, measure, _ = of
    values, seeds = scores.matrix(rate, rows, [method, rival], measure, targets)
    if not seeds:
        return []
    by_target = values[0] - values[1]
    better = int((by_target.mean(axis=1) > 0).sum())
    return [Difference(*of, average_over_seeds(by_target.mean(axis=0)), better, len(targets), len(seeds))]


def average_over_seeds(values: Array) -> Interval:
    """Return the mean of values `(seeds,)` with Student's 95% interval; without bounds for one seed or equal values."""
    mean, count = float(values.mean()), len(values)
    if count < 2 or np.ptp(values) < NEGLIGIBLE:
        return Interval(mean, None, None)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1) * values.std(ddof=1) / np.sqrt(count))
    return Interval(mean, mean - half, mean + half)


def compute_shifts(scores: Scores) -> list[Shift]:
    """Average drift, IsoScore and step time of each condition over the targets and seeds measured for all conditions.

    The base model is among the conditions. A learning rate without a seed complete for all conditions has none.
    """
    found = []
    for rate in scores.rates:
        measured = [r for r in scores.results if r.learning_rate == rate and r.drift is not None]
        methods = list(dict.fromkeys(r.method for r in measured))
        there = {(r.method, r.target, r.seed) for r in measured}
        cells = {(r.target, r.seed) for r in measured}
        common = {cell for cell in cells if all((m, *cell) in there for m in methods)}
        targets = {target for target, _ in common}
        whole = {seed for _, seed in common if all((target, seed) in common for target in targets)}
        for method in methods if whole else []:
            some = [r for r in measured if r.method == method and (r.target, r.seed) in common and r.seed in whole]
            seconds = [r.seconds_per_step for r in some if r.seconds_per_step is not None]
            middle = float(np.median(seconds)) if seconds else None
            found.append(
                Shift(rate, method, _average_by_seed(some, "drift"), _average_by_seed(some, "isoscore"), middle)
            )
    return found


def _average_by_seed(results: Sequence[Result], measure: str) -> Interval:
    """Average a measure over targets for each seed, and return the mean over seeds with its interval.

    Args:
        results: results of one condition.
        measure: name of a field of `Result`.
    """
    values: dict[int, list[float]] = {}
    for result in results:
        values.setdefault(result.seed, []).append(getattr(result, measure))
    return average_over_seeds(np.array([np.mean(some) for some in values.values()]))
