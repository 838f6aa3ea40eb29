"""Does debiasing help here: how well halves of texts find each other before it and after; else how long the mean is."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.advice.halves import reciprocal_ranks
from training.advice.sample import HALVES_LEAST, Halves, Sample
from training.evaluation.statistics import Interval, mean_interval
from transforms.chain import Chain, parse_steps
from transforms.errors import TransformError
from transforms.quality import recall_at_k
from transforms.statistics import Moments

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
"""What is tried, the simplest first: of several that cannot be told apart the first is taken."""
ERROR_RATE = 0.05
"""That any of the methods is called a gain by chance; each has its share of it (Bonferroni)."""
CONFIDENCE = 1 - ERROR_RATE / (len(METHODS) - 1)
"""Of the interval of each gain."""
LARGE_MEAN = 0.5
"""‖μ‖ from which it is called large, as a quarter of every vector's squared length is then the mean's, and from which
R2 is worth doing where the halves cannot tell: it classified better in 29 of the mean-bias paper's 38 encoders, worse
in none. Here, where the halves spoke for nothing, it gained 6.0 points [3.3, 9.0] under CLS pooling and 0.9 [−0.1, 2.0]
under mean pooling, averaged over data sets (docs/advice.md)."""
BY_POOLING = (
    "on layers of text encoders this rule gained under CLS pooling (+6.0 points, 3.3 to 9.0) and hardly under mean "
    "pooling (+0.9, −0.1 to 2.0)"
)
"""What is said of vectors, of which nothing else is known."""
GEOMETRY_ROWS = 2000
"""Held-out rows whose neighbours are looked at; time grows with their square."""


@dataclass(frozen=True)
class DebiasingTrial:
    """A method on the held-out rows.

    Attributes:
        method: see `METHODS`.
        steps: of its chain.
        retrieval: mean reciprocal rank of the halves; None where no texts can be cut.
        gain: to doing nothing, in points, paired by text, at 1 − `ERROR_RATE` over all methods together: `CONFIDENCE`.
        mean_norm: ‖μ‖ of the unit vectors afterwards.
        recall_at_10: of the neighbours that the raw vectors have.
        problem: why it could not be fitted.
    """

    method: str
    steps: str
    retrieval: float | None = None
    gain: Interval | None = None
    mean_norm: float | None = None
    recall_at_10: float | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Debiasing:
    """All trials, and what follows.

    Attributes:
        trials: in the order of `METHODS`.
        by_halves: the method that the halves of texts speak for; doing nothing unless another is better beyond its
            interval.
        chosen: the method to use; see `settled`.
        why: in a sentence.
    """

    trials: list[DebiasingTrial]
    by_halves: str
    chosen: str
    why: str

    @property
    def by_length(self) -> bool:
        """Whether the length of the mean decided, as the halves spoke for nothing."""
        return self.chosen != self.by_halves

    def trial(self, method: str) -> DebiasingTrial:
        """Of a method."""
        return next(one for one in self.trials if one.method == method)


def try_debiasing(sample: Sample) -> Debiasing:
    """Fit every method on the rows to fit on, and measure it on the halves of the others."""
    cut = sample.halves
    ranks: dict[str, NDArray[np.float64]] = {}
    trials: list[DebiasingTrial] = []
    for method, steps in METHODS.items():
        try:
            chain = Chain(parse_steps(steps)).fit(sample.fit)
        except TransformError as error:
            trials.append(DebiasingTrial(method, steps, problem=str(error)))
            continue
        if cut is not None:
            ranks[method] = ranks_behind(chain, cut)
        trials.append(measured(method, chain, sample, ranks))
    by_halves, why = choose(ranks) if ranks else (NOTHING, undecided(sample))
    nothing, r2 = trials[0], next(one for one in trials if one.method == "R2")
    if r2.problem is None and nothing.mean_norm is not None:
        chosen = settled(by_halves, nothing.mean_norm, r2.gain)
    else:
        chosen = by_halves
    if chosen != by_halves:
        why += f"; it is recommended for the length of the mean, not measured here: ‖μ‖ is {nothing.mean_norm:.2f}"
        why += f"; {BY_POOLING}" if sample.drawn.vectors is not None else ""
    return Debiasing(trials, by_halves, chosen, why)


def settled(by_halves: str, mean_norm: float, r2_gain: Interval | None) -> str:
    """The method to use: what the halves speak for; where for none, R2 if the mean is long and R2 did them no harm.

    Args:
        by_halves: what they speak for.
        mean_norm: ‖μ‖ of the unit vectors.
        r2_gain: of R2 to doing nothing by the halves; None where they were not ranked.
    """
    harmed = r2_gain is not None and r2_gain.sign < 0
    return "R2" if by_halves == NOTHING and mean_norm >= LARGE_MEAN and not harmed else by_halves


def ranks_behind(chain: Chain, cut: Halves, dimensions: int | None = None) -> NDArray[np.float64]:
    """Reciprocal ranks `(n,)` of the halves behind a chain, which may be cut to a size."""
    return reciprocal_ranks(chain.floats(cut.first, dimensions), chain.floats(cut.second, dimensions))


def measured(method: str, chain: Chain, sample: Sample, ranks: dict[str, NDArray[np.float64]]) -> DebiasingTrial:
    """A fitted method on the held-out rows; its gain where the halves were ranked."""
    after = chain.floats(sample.heldout)
    before, near = sample.heldout[:GEOMETRY_ROWS], after[:GEOMETRY_ROWS]
    own = ranks.get(method)
    return DebiasingTrial(
        method,
        METHODS[method],
        retrieval=None if own is None else float(own.mean()),
        gain=None if own is None or method == NOTHING else gain_of(own, ranks[NOTHING]),
        mean_norm=Moments.from_vectors(after).mean_norm(),
        recall_at_10=recall_at_k(before, near, 10) if len(near) > 10 else None,
    )


def gain_of(ranks: NDArray[np.float64], control: NDArray[np.float64]) -> Interval:
    """Points that one is ahead of the other, paired by text."""
    return mean_interval(100 * (ranks - control), CONFIDENCE)


def choose(ranks: dict[str, NDArray[np.float64]]) -> tuple[str, str]:
    """The method to use, and why.

    Of those that are better than nothing beyond their interval, the best; or one that is simpler and not worse than
    the best beyond the interval.
    """
    gains = {method: gain_of(own, ranks[NOTHING]) for method, own in ranks.items() if method != NOTHING}
    better = [method for method, gain in gains.items() if gain.sign > 0]
    if not better:
        worse = [method for method, gain in gains.items() if gain.sign < 0]
        harm = f"; harm is done by {listed(worse)}" if worse else ""
        return NOTHING, f"no method helps the halves of a text to find each other beyond its interval{harm}"
    best = max(better, key=lambda method: gains[method].value)
    chosen = next(method for method in better if gain_of(ranks[method], ranks[best]).sign >= 0)
    why = f"it helps the halves of a text to find each other, by {gains[chosen].value:.2f} points"
    if chosen != best:
        why += f"; {best} is less simple, and not better beyond the interval"
    return chosen, why


def undecided(sample: Sample) -> str:
    """Why it cannot be told whether debiasing helps."""
    if sample.drawn.vectors is not None:
        return "of vectors without texts it cannot be told whether debiasing helps"
    return (
        f"only {sample.cut} held-out texts are long enough to be cut in two, {HALVES_LEAST} are the least, so that it "
        "cannot be told whether debiasing helps"
    )


def listed(names: list[str]) -> str:
    """Names in a sentence."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
