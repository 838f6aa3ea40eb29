"""Comparison of debiasing methods by split-half retrieval, or by the norm of the mean if that decides nothing."""

from dataclasses import dataclass

from lathe.training.comparison import Array, Interval, choose_cheapest, compare
from lathe.training.deciding.sample import MIN_HALVES, Sample
from lathe.training.measures import rank_halves
from lathe.transforms.chain import Chain, parse_steps
from lathe.transforms.errors import TransformError
from lathe.transforms.quality import recall_at_k
from lathe.transforms.statistics import Moments

NOTHING = "nothing"
METHODS = {
    NOTHING: "normalize",
    "R2": "r2",
    "R1": "r1",
    "ABTT-1": "abtt:1",
    "ABTT-2": "abtt:2",
    "ABTT-3": "abtt:3",
    "whitening": "whitening:epsilon=1e-6,relative=false",
}
"""Steps of the compared methods, simplest first: of methods that do not differ significantly, the first is chosen."""
ERROR_RATE = 0.05
"""Probability of calling any method a gain by chance; it is divided equally among the methods (Bonferroni)."""
CONFIDENCE = 1 - ERROR_RATE / (len(METHODS) - 1)
"""Confidence level of the interval of each method's gain: 1 − `ERROR_RATE` / number of methods."""
LARGE_MEAN = 0.5
"""‖μ‖ of unit vectors from which on the mean is called large: a quarter of every squared norm is then due to the mean.
From here on, R2 is recommended if split-half retrieval shows no gain of any method: R2 classified better in 29 of the
mean-bias paper's 38 encoders, worse in none. Where split-half retrieval showed no gain, R2 gained 6.0 points [3.3, 9.0]
under CLS pooling and 0.9 [−0.1, 2.0] under mean pooling, averaged over data sets (research/advice.md)."""
BY_POOLING = (
    "on layers of text encoders this rule gained under CLS pooling (+6.0 points, 3.3 to 9.0) and hardly under mean "
    "pooling (+0.9, −0.1 to 2.0)"
)
"""Remark on the evidence for `LARGE_MEAN`, added for vectors without texts, because their pooling is unknown."""
GEOMETRY_ROWS = 2000
"""Maximum number of held-out rows whose neighbours are searched; the time grows with its square."""


@dataclass(frozen=True)
class DebiasingTrial:
    """Measurements of one debiasing method on held-out rows.

    Attributes:
        method: key of `METHODS`.
        steps: steps of its chain.
        retrieval: mean reciprocal rank of split-half retrieval, in (0, 1]; None without text halves.
        gain: difference of 100·`retrieval` to `NOTHING`, paired by text, with an interval of level `CONFIDENCE`; None
            without halves, and for `NOTHING`.
        mean_norm: ‖μ‖ of the transformed unit vectors.
        recall_at_10: recall@10 of the neighbours among the raw vectors; None with at most 10 rows.
        problem: reason why the method could not be fitted; None if it was fitted.
    """

    method: str
    steps: str
    retrieval: float | None = None
    gain: Interval | None = None
    mean_norm: float | None = None
    recall_at_10: float | None = None
    problem: str | None = None


@dataclass(frozen=True)
class DebiasingComparison:
    """Measurements of all debiasing methods, and the choice among them.

    Attributes:
        trials: measurements, in the order of `METHODS`.
        by_halves: method that split-half retrieval favours; `NOTHING` unless a method has a significant gain.
        chosen: recommended method; see `choose_by_mean_norm`.
        why: reason for the choice, as a sentence without a full stop.
    """

    trials: list[DebiasingTrial]
    by_halves: str
    chosen: str
    why: str

    @property
    def by_length(self) -> bool:
        """Whether the norm of the mean decided the choice, because split-half retrieval favoured no method."""
        return self.chosen != self.by_halves

    def trial(self, method: str) -> DebiasingTrial:
        """Return the measurements of a debiasing method, a key of `METHODS`. Raise `StopIteration` for another key."""
        return next(trial for trial in self.trials if trial.method == method)


def compare_debiasing(sample: Sample) -> DebiasingComparison:
    """Fit and measure all debiasing methods on held-out rows, and recommend one. A failed fit gives a `problem`.

    The choice follows `choose_by_halves`. Without a significant gain there, or without text halves, it follows
    `choose_by_mean_norm`.
    """
    ranks: dict[str, Array] = {}
    trials: list[DebiasingTrial] = []
    for method, steps in METHODS.items():
        try:
            chain = Chain(parse_steps(steps)).fit(sample.fit)
        except TransformError as error:
            trials.append(DebiasingTrial(method, steps, problem=str(error)))
            continue

        retrieval, gain = None, None
        if sample.halves is not None:
            ranks[method] = rank_halves(chain, sample.halves)
            retrieval = float(ranks[method].mean())
            gain = estimate_gain(ranks[method], ranks[NOTHING]) if method != NOTHING else None
        after = chain.floats(sample.heldout)
        before, near = sample.heldout[:GEOMETRY_ROWS], after[:GEOMETRY_ROWS]
        recall = recall_at_k(before, near, 10) if len(near) > 10 else None
        mean_norm = Moments.from_vectors(after).mean_norm()
        trials.append(DebiasingTrial(method, steps, retrieval, gain, mean_norm, recall))

    if ranks:
        by_halves, why = choose_by_halves(ranks)
    elif sample.row_sample.vectors is not None:
        by_halves, why = NOTHING, "of vectors without texts it cannot be told whether debiasing helps"
    else:
        count = f"only {sample.cut} held-out texts are long enough to be cut in two, and {MIN_HALVES} are needed"
        by_halves, why = NOTHING, f"{count} to tell whether debiasing helps"
    # R2 is known to help where the mean is long, also where split-half retrieval cannot tell.
    chosen, r2 = by_halves, next(trial for trial in trials if trial.method == "R2")
    if r2.problem is None and (mean_norm_before := trials[0].mean_norm) is not None:
        chosen = choose_by_mean_norm(by_halves, mean_norm_before, r2.gain)
    if chosen != by_halves:
        why += f"; it is recommended for the length of the mean, not measured here: ‖μ‖ is {trials[0].mean_norm:.2f}"
        why += f"; {BY_POOLING}" if sample.row_sample.vectors is not None else ""

    return DebiasingComparison(trials, by_halves, chosen, why)


def choose_by_mean_norm(by_halves: str, mean_norm: float, r2_gain: Interval | None) -> str:
    """Return "R2" if the mean of the unit vectors is large and split-half retrieval allows R2, else `by_halves`.

    The mean is large if ‖μ‖ ≥ `LARGE_MEAN`. Split-half retrieval allows R2 if it neither favours a method nor shows a
    significant loss with R2.

    Args:
        by_halves: method that split-half retrieval favours.
        mean_norm: ‖μ‖ of the unit vectors.
        r2_gain: gain of R2 over no debiasing in split-half retrieval; None without halves.
    """
    r2_loses = r2_gain is not None and r2_gain.sign < 0
    return "R2" if by_halves == NOTHING and mean_norm >= LARGE_MEAN and not r2_loses else by_halves


def estimate_gain(ranks: Array, baseline: Array) -> Interval:
    """Estimate the mean difference of reciprocal ranks × 100, paired by text, with an interval of `CONFIDENCE`."""
    return compare(100 * ranks, 100 * baseline, CONFIDENCE)


def choose_by_halves(ranks: dict[str, Array]) -> tuple[str, str]:
    """Choose the simplest method with a significant gain that no method beats, else `NOTHING`, and return the reason.

    Gains are of split-half retrieval: one half of a text searches for the other half.

    Args:
        ranks: reciprocal ranks `(n,)` of split-half retrieval, by method in the order of `METHODS`.

    Returns:
        The method, and the reason as a clause.
    """
    gains = {name: estimate_gain(values, ranks[NOTHING]) for name, values in ranks.items() if name != NOTHING}
    # METHODS are in order, the simplest first.
    chosen = list(ranks)[choose_cheapest(list(ranks.values()), CONFIDENCE)]
    if chosen == NOTHING:
        why = "no method has a significant gain in split-half retrieval"
        if worse := [method for method, gain in gains.items() if gain.sign < 0]:
            # As in a sentence: "a, b and c".
            why += "; significantly worse: " + " and ".join(filter(None, [", ".join(worse[:-1]), worse[-1]]))
        return NOTHING, why

    why = f"it gains {gains[chosen].value:.2f} points in split-half retrieval"
    best = max(gains, key=lambda method: gains[method].value)
    if chosen != best:
        why += f"; {best} is less simple, and not significantly better"
    return chosen, why
