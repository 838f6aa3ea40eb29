"""What an experiment says: averages over targets, paired differences, intervals over seeds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from training.evaluation.statistics import NEGLIGIBLE, Array, Interval
from training.research.reze_experiment.book import Result
from training.research.reze_experiment.run import Experiment
from training.research.reze_experiment.settings import METHODS

CONFIDENCE = 0.95
PROPOSED = "reze"
MEASURES = ("score", "linear_probe")


@dataclass(frozen=True)
class Average:
    """A method's score × 100, averaged over targets; the interval is that of seeds.

    Attributes:
        learning_rate: of both stages.
        rows: n of the fine-tuning; 0 is before it.
        method: see `arms.py`.
        measure: `score` or `linear_probe`.
        score: the average.
        targets: it is over.
        seeds: complete on all of these.
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
    """A method less another in points, paired by target and seed.

    Attributes:
        learning_rate: of both stages.
        rows: n of the fine-tuning.
        method: the one.
        rival: the other.
        measure: `score` or `linear_probe`.
        group: of targets: `all`, or a task.
        points: averaged over targets; the interval is that of seeds.
        better: targets on which the method's mean over seeds is higher.
        targets: all of them.
        seeds: complete for both.
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
    """How far an arm moved the encoder before any fine-tuning, averaged over targets and seeds.

    Attributes:
        learning_rate: of the pre-finetuning.
        method: the arm.
        drift: mean 1 − cosine on held-out text of the domain.
        isoscore: of that text.
        seconds_per_step: median.
    """

    learning_rate: float
    method: str
    drift: Interval
    isoscore: Interval
    seconds_per_step: float | None


@dataclass(frozen=True)
class Findings:
    """Everything that is said of an experiment."""

    averages: list[Average]
    differences: list[Difference]
    shifts: list[Shift]


class Scores:
    """Results by what they are of."""

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
        """Scores × 100 `(methods, targets, seeds)` of the seeds for which nothing is missing, and those seeds."""
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
        """A score."""
        return self.values.get((rate, rows, method, target, seed), {}).get(measure)

    def targets_of(self, rate: float, rows: int, methods: Sequence[str], measure: str) -> list[str]:
        """Targets that every one of the methods was measured on with at least one seed."""
        there = {
            (m, t) for (r, n, m, t, _), v in self.values.items() if (r, n) == (rate, rows) and v[measure] is not None
        }
        return [target for target in self.tasks if all((method, target) in there for method in methods)]

    def measured(self, rate: float, rows: int) -> list[str]:
        """Methods that were measured there, in order."""
        there = {m for r, n, m, _, _ in self.values if (r, n) == (rate, rows)}
        return [method for method in self.methods if method in there]


def find(experiment: Experiment) -> Findings:
    """Averages, differences and shifts of all results."""
    scores = Scores(experiment.results)
    cells = [(rate, rows) for rate in scores.rates for rows in scores.rows]
    averages = [one for cell in cells for measure in MEASURES for one in averaged(scores, *cell, measure)]
    differences = [one for cell in cells for measure in MEASURES for one in compared(scores, *cell, measure)]
    return Findings(averages, differences, shifts(scores))


def averaged(scores: Scores, rate: float, rows: int, measure: str) -> list[Average]:
    """Each method's average over the targets on which all methods were measured, of the seeds complete for all."""
    methods = scores.measured(rate, rows)
    targets = scores.targets_of(rate, rows, methods, measure)
    values, seeds = scores.matrix(rate, rows, methods, measure, targets)
    if not targets or not seeds:
        return []
    return [
        Average(rate, rows, method, measure, over_seeds(found.mean(axis=0)), len(targets), len(seeds))
        for method, found in zip(methods, values, strict=True)
    ]


def is_rival(method: str) -> bool:
    """Whether a method is not REZE, in any of its variants."""
    return method in METHODS and method != PROPOSED or method.startswith("distill, ")


def compared(scores: Scores, rate: float, rows: int, measure: str) -> list[Difference]:
    """REZE, and every variant of it, against each other method; by all targets and by task."""
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
                found += difference(scores, (rate, rows, method, rival, measure, group), some)
    return found


def difference(scores: Scores, of: tuple[float, int, str, str, str, str], targets: Sequence[str]) -> list[Difference]:
    """One difference, of the seeds complete for both; none without such a seed."""
    rate, rows, method, rival, measure, _ = of
    values, seeds = scores.matrix(rate, rows, [method, rival], measure, targets)
    if not seeds:
        return []
    by_target = values[0] - values[1]
    better = int((by_target.mean(axis=1) > 0).sum())
    return [Difference(*of, over_seeds(by_target.mean(axis=0)), better, len(targets), len(seeds))]


def over_seeds(values: Array) -> Interval:
    """The mean of a value for each seed, with Student's interval; None where there is one seed, or they are equal."""
    mean, count = float(values.mean()), len(values)
    if count < 2 or np.ptp(values) < NEGLIGIBLE:
        return Interval(mean, None, None)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1) * values.std(ddof=1) / np.sqrt(count))
    return Interval(mean, mean - half, mean + half)


def shifts(scores: Scores) -> list[Shift]:
    """How far each arm moved the encoder, and the base model's own IsoScore, where all arms were measured."""
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
            found.append(Shift(rate, method, by_seed(some, "drift"), by_seed(some, "isoscore"), middle))
    return found


def by_seed(results: Sequence[Result], measure: str) -> Interval:
    """A measure averaged over targets, with the interval of seeds."""
    values: dict[int, list[float]] = {}
    for result in results:
        values.setdefault(result.seed, []).append(getattr(result, measure))
    return over_seeds(np.array([np.mean(some) for some in values.values()]))
