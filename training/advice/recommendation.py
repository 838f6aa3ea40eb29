"""One chain out of all that was measured, with its reasons, its price and what comes second."""

from dataclasses import dataclass

from training.advice.debiasing import NOTHING, Debiasing
from training.advice.price import price
from training.advice.sizes import REDUCERS, Sizes, SizeTrial
from training.evaluation.statistics import Interval

ROWS_LEAST = 500
"""Held-out rows: among fewer, forty candidates are so many of all that any size seems to keep the neighbours."""
ALIKE = 0.01
"""Of recall@10: reducers no further apart count as alike."""
SIMPLEST = ("truncation", "PCA", "nested GeoPres")
"""Reducers of one size that count as alike: what needs no fit first, then what comes in closed form."""


@dataclass(frozen=True)
class Recommendation:
    """A chain to fit.

    Attributes:
        steps: as `lathe fit --steps` takes them; empty to leave the vectors as they are.
        debiasing: the method in it.
        reducer: likewise; empty for none.
        dimensions: of its output.
        bytes: of a vector, in float32.
        keeps: whether it keeps what it must; a runner-up may miss it.
        reasons: sentences.
        price: what it costs, in sentences.
    """

    steps: str
    debiasing: str
    reducer: str
    dimensions: int
    bytes: int
    keeps: bool
    reasons: list[str]
    price: str


def recommend(debiasing: Debiasing, sizes: Sizes, keep: float) -> tuple[Recommendation, Recommendation | None]:
    """The chain to fit, and the runner-up.

    The smallest size at which a reducer keeps enough; of those that are alike there the simplest. The runner-up is
    the next best: another reducer at that size, else the next larger size; where none keeps enough, what comes nearest.
    """
    if sizes.rows < ROWS_LEAST or not sizes.trials:
        return written(debiasing, sizes, None, keep), None
    ranked = rank([trial for trial in sizes.trials if keeps_enough(trial, sizes.full, keep)])
    best = written(debiasing, sizes, ranked[0] if ranked else None, keep)
    if not ranked:
        return best, written(debiasing, sizes, max(sizes.trials, key=lambda trial: trial.rescored_4x.value), keep)
    return best, written(debiasing, sizes, ranked[1], keep) if len(ranked) > 1 else None


def keeps_enough(trial: SizeTrial, full: SizeTrial, keep: float) -> bool:
    """Whether a size keeps the neighbours, and what halves of texts find, by the lower bounds of their intervals."""
    return all(lower(kept) >= keep for kept in what_is_kept(trial, full).values())


def what_is_kept(trial: SizeTrial, full: SizeTrial) -> dict[str, Interval]:
    """The shares that a size must keep, each in its interval."""
    found = {"the ten nearest neighbours with rescoring": trial.rescored_4x}
    if trial.loss is not None and full.retrieval:
        raw, loss = 100 * full.retrieval, trial.loss
        low, high = (None if bound is None else 1 + bound / raw for bound in (loss.low, loss.high))
        found["what halves of texts find of each other"] = Interval(1 + loss.value / raw, low, high)
    return found


def lower(share: Interval) -> float:
    """The lower bound; where there is none, the value."""
    return share.value if share.low is None else share.low


def rank(trials: list[SizeTrial]) -> list[SizeTrial]:
    """The smallest first; within a size the best, but the simplest of those that are alike to it."""
    found: list[SizeTrial] = []
    for size in sorted({trial.dimensions for trial in trials}):
        some = sorted((t for t in trials if t.dimensions == size), key=lambda t: -t.recall_at_10)
        alike = [trial for trial in some if some[0].recall_at_10 - trial.recall_at_10 <= ALIKE]
        simplest = min(alike, key=lambda trial: SIMPLEST.index(trial.reducer))
        found += [simplest, *(trial for trial in some if trial is not simplest)]
    return found


def written(debiasing: Debiasing, sizes: Sizes, trial: SizeTrial | None, keep: float) -> Recommendation:
    """A recommendation in words; without a trial the full width is kept."""
    own = trial or sizes.full
    steps = [debiasing.trial(debiasing.chosen).steps] if debiasing.chosen != NOTHING else []
    steps += [REDUCERS[trial.reducer].format(k=trial.dimensions)] if trial else []
    method = "No debiasing" if debiasing.chosen == NOTHING else debiasing.chosen
    return Recommendation(
        steps=",".join(steps),
        debiasing=debiasing.chosen,
        reducer=own.reducer,
        dimensions=own.dimensions,
        bytes=own.bytes,
        keeps=trial is None or keeps_enough(trial, sizes.full, keep),
        reasons=[
            f"{method}: {debiasing.why}.",
            reason_for_size(sizes, trial, keep),
            *([] if trial is None else [reason_for_reducer(sizes, trial)]),
        ],
        price=price(sizes, own, debiasing.chosen),
    )


def reason_for_size(sizes: Sizes, trial: SizeTrial | None, keep: float) -> str:
    """Why this size and not a smaller one."""
    if sizes.rows < ROWS_LEAST:
        return f"The full width: among {sizes.rows:,} held-out rows it cannot be told what a size keeps."
    floors = f"{100 * keep:g} % of the ten nearest neighbours with rescoring"
    if any(one.retrieval is not None for one in sizes.trials):
        floors += " and of what halves of texts find of each other"
    if trial is None:
        return f"The full width: no size that was tried keeps {floors}."
    if not keeps_enough(trial, sizes.full, keep):
        return f"{trial.dimensions} dimensions: the nearest to keeping {floors}."
    return f"{trial.dimensions} dimensions: the fewest that keep {floors}, by the lower bounds of their intervals."


def reason_for_reducer(sizes: Sizes, trial: SizeTrial) -> str:
    """Why this reducer and not another of the same size."""
    same = [one for one in sizes.trials if one.dimensions == trial.dimensions]
    each = ", ".join(f"{one.reducer} {one.recall_at_10:.3f}" for one in same)
    best = max(same, key=lambda one: one.recall_at_10)
    below = best.recall_at_10 - trial.recall_at_10
    if trial is best:
        told = "it is the best there"
    elif below <= ALIKE and SIMPLEST.index(trial.reducer) < SIMPLEST.index(best.reducer):
        told = f"it is simpler than {best.reducer}, and no further below than {ALIKE:g}"
    else:
        told = f"it is {below:.3f} below {best.reducer}"
    return f"{trial.reducer}: recall@10 without rescoring is {each} at that size; {told}."
