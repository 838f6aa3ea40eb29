"""One chain out of all that was measured, with its reasons, its price and what comes second."""

from dataclasses import dataclass

from training.advice.debiasing import NOTHING, Debiasing
from training.advice.matryoshka import Matryoshka
from training.advice.sizes import REDUCERS, Sizes, SizeTrial

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
        reasons: sentences.
        price: what it costs, in a sentence.
    """

    steps: str
    debiasing: str
    reducer: str
    dimensions: int
    bytes: int
    reasons: list[str]
    price: str


def recommend(
    debiasing: Debiasing, sizes: Sizes, matryoshka: Matryoshka, keep: float
) -> tuple[Recommendation, Recommendation | None]:
    """The chain to fit, and the runner-up.

    The smallest size at which a reducer keeps enough; of those that are alike there the simplest. The runner-up is
    the next best: another reducer at that size, else the next larger size.
    """
    ranked = rank([trial for trial in sizes.trials if keeps_enough(trial, sizes.full, keep)])
    best = written(debiasing, sizes, matryoshka, ranked[0] if ranked else None, keep)
    if len(ranked) < 2:
        return best, None
    return best, written(debiasing, sizes, matryoshka, ranked[1], keep)


def keeps_enough(trial: SizeTrial, full: SizeTrial, keep: float) -> bool:
    """Whether a size keeps the neighbours, and what halves of texts find."""
    if trial.recall_at_10_rescored_4x < keep:
        return False
    if trial.retrieval is None or not full.retrieval:
        return True
    return trial.retrieval >= keep * full.retrieval


def rank(trials: list[SizeTrial]) -> list[SizeTrial]:
    """The smallest first; within a size the best, but the simplest of those that are alike to it."""
    found: list[SizeTrial] = []
    for size in sorted({trial.dimensions for trial in trials}):
        some = sorted((t for t in trials if t.dimensions == size), key=lambda t: -t.recall_at_10)
        alike = [trial for trial in some if some[0].recall_at_10 - trial.recall_at_10 <= ALIKE]
        simplest = min(alike, key=lambda trial: SIMPLEST.index(trial.reducer))
        found += [simplest, *(trial for trial in some if trial is not simplest)]
    return found


def written(
    debiasing: Debiasing, sizes: Sizes, matryoshka: Matryoshka, trial: SizeTrial | None, keep: float
) -> Recommendation:
    """A recommendation in words; without a trial the full width is kept."""
    own = trial or sizes.full
    steps = [debiasing.trial(debiasing.chosen).steps] if debiasing.chosen != NOTHING else []
    steps += [REDUCERS[trial.reducer].format(k=trial.dimensions)] if trial else []
    return Recommendation(
        steps=",".join(steps),
        debiasing=debiasing.chosen,
        reducer=own.reducer,
        dimensions=own.dimensions,
        bytes=own.bytes,
        reasons=[
            f"{debiasing.chosen.capitalize() if debiasing.chosen == NOTHING else debiasing.chosen}: {debiasing.why}.",
            reason_for_size(sizes, trial, keep),
            *([] if trial is None else [reason_for_reducer(sizes, matryoshka, trial)]),
        ],
        price=price(sizes.full, own),
    )


def reason_for_size(sizes: Sizes, trial: SizeTrial | None, keep: float) -> str:
    """Why this size and not a smaller one."""
    floors = f"{100 * keep:g} % of the ten nearest neighbours with rescoring"
    if any(one.retrieval is not None for one in sizes.trials):
        floors += " and of what halves of texts find of each other"
    if trial is None:
        return f"No size that was tried keeps {floors}; the full width stays."
    return f"{trial.dimensions} dimensions: the fewest that keep {floors}."


def reason_for_reducer(sizes: Sizes, matryoshka: Matryoshka, trial: SizeTrial) -> str:
    """Why this reducer and not another of the same size."""
    same = [one for one in sizes.trials if one.dimensions == trial.dimensions]
    each = ", ".join(f"{one.reducer} {one.recall_at_10:.3f}" for one in same)
    of_cutting = "the encoder was trained to be cut" if matryoshka.trained else "it needs no fit and is alike"
    told = {
        "truncation": of_cutting,
        "PCA": "PCA comes in closed form and is alike",
        "nested GeoPres": "it is the best and serves every smaller size too",
    }[trial.reducer]
    return f"{trial.reducer}: recall@10 without rescoring is {each} there; {told}."


def price(full: SizeTrial, own: SizeTrial) -> str:
    """What is saved and what is lost, in a sentence."""
    if own is full:
        return f"{full.bytes:,} bytes a vector, as before."
    lost = f"recall@10 of the full vectors {own.recall_at_10:.3f}, rescored {own.recall_at_10_rescored_4x:.3f}"
    if own.loss is not None:
        lost += f", mean reciprocal rank of halves of texts {own.loss.value:+.2f} points"
    return (
        f"{own.bytes:,} bytes a vector instead of {full.bytes:,} ({100 * (1 - own.bytes / full.bytes):.0f} % less), "
        f"similarities {full.gemm_ms / own.gemm_ms:.1f}× as fast; {lost}."
    )
