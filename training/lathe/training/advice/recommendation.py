"""Choice of one chain from all measurements, with reasons and cost, of a runner-up, and of a budget of bytes."""

from dataclasses import dataclass

from lathe.training.advice.budgets import BudgetComparison, BudgetTrial
from lathe.training.advice.cost import describe_cost
from lathe.training.advice.debiasing import NOTHING, DebiasingComparison
from lathe.training.advice.retained_share import compute_retained_share
from lathe.training.advice.sizes import REDUCERS, SizeComparison, SizeTrial
from lathe.training.evaluation.statistics import Interval

MIN_HELDOUT = 500
"""Minimum number of held-out rows for a reduction. With fewer, the forty candidates of a rescored search are so large a
share of all rows that any reduction seems to preserve the neighbours."""
EQUAL_RECALL = 0.01
"""Difference in recall@10 up to which reducers count as equal."""
SIMPLEST = ("truncation", "PCA", "nested GeoPres")
"""Reducers from simplest to most complex, to choose among equal ones: no fit, closed form, trained."""


@dataclass(frozen=True)
class Recommendation:
    """Chain to fit, with reasons and cost.

    Attributes:
        steps: steps as `lathe fit --steps` takes them; empty to leave the vectors unchanged.
        debiasing: name of the debiasing method, or `NOTHING`.
        reducer: name of the reducer; empty for none.
        dimensions: output dimensions.
        bytes: bytes of an output vector in float32.
        keeps: whether the chain preserves the required share; a runner-up may not.
        reasons: reasons, as sentences.
        cost: cost, as sentences.
    """

    steps: str
    debiasing: str
    reducer: str
    dimensions: int
    bytes: int
    keeps: bool
    reasons: list[str]
    cost: str


def recommend(
    debiasing: DebiasingComparison, sizes: SizeComparison, keep: float
) -> tuple[Recommendation, Recommendation | None]:
    """Choose the smallest reduction that preserves the share `keep` of neighbours and of split-half MRR.
    Return its recommendation, with the chosen debiasing in front, and that of a runner-up or None.

    Among reducers that are equal at that size, the simplest is chosen. The runner-up is the next of those that preserve
    `keep`: another reducer of that size, else the next larger size; None if there is no other. If no reduction
    preserves it, full dimensions are recommended, and the runner-up is the reduction with the highest rescored recall.
    With fewer than `MIN_HELDOUT` rows, or without reductions, full dimensions are recommended without a runner-up.
    """
    if sizes.rows < MIN_HELDOUT or not sizes.trials:
        return _build_recommendation(debiasing, sizes, None, keep), None

    ranked = rank_reductions([trial for trial in sizes.trials if _preserves_enough(trial, sizes.full, keep)])
    best = _build_recommendation(debiasing, sizes, ranked[0] if ranked else None, keep)
    if not ranked:
        return best, _build_recommendation(
            debiasing, sizes, max(sizes.trials, key=lambda trial: trial.rescored_4x.value), keep
        )

    return best, _build_recommendation(debiasing, sizes, ranked[1], keep) if len(ranked) > 1 else None


def recommend_budget(budgets: BudgetComparison, full: SizeTrial, keep: float) -> BudgetTrial | None:
    """Return the trial of the smallest codes that preserve the share `keep`, or None if none do.
    The share is of the full vectors' neighbours and of their split-half MRR. With fewer than `MIN_HELDOUT` rows the
    result is None too.
    """
    if budgets.rows < MIN_HELDOUT:
        return None
    return next((trial for trial in budgets.codes if _preserves_enough(trial, full, keep)), None)


def _preserves_enough(trial: SizeTrial | BudgetTrial, full: SizeTrial, keep: float) -> bool:
    """Return whether a reduction certainly preserves the share `keep` of neighbours and of split-half MRR.
    The lower bounds of both shares' intervals must reach it.
    """
    return all(share.bounds[0] >= keep for share in compute_preserved_shares(trial, full).values())


def compute_preserved_shares(trial: SizeTrial | BudgetTrial, full: SizeTrial) -> dict[str, Interval]:
    """Compute the shares of nearest neighbours and of split-half MRR that a reduction preserves.
    Return them in a dict by description, without the second if no text halves were measured.

    Args:
        trial: measurements of the reduction, or of codes.
        full: measurements at full dimensions.
    """
    shares = {"the ten nearest neighbours with rescoring": trial.rescored_4x}
    if trial.loss is not None and full.retrieval:
        shares["the score in split-half retrieval"] = compute_retained_share(full.retrieval, trial.loss)
    return shares


def rank_reductions(trials: list[SizeTrial]) -> list[SizeTrial]:
    """Return the reductions sorted by dimensions, smallest first, and at equal dimensions by recall@10, highest first.
    At each size, the simplest reducer within `EQUAL_RECALL` of the best is moved to the front.
    """
    ranked: list[SizeTrial] = []
    for size in sorted({trial.dimensions for trial in trials}):
        of_size = sorted((t for t in trials if t.dimensions == size), key=lambda t: -t.recall_at_10)
        # Within EQUAL_RECALL the simplest reducer is preferred: it needs no training, or no fit at all.
        alike = [trial for trial in of_size if of_size[0].recall_at_10 - trial.recall_at_10 <= EQUAL_RECALL]
        simplest = min(alike, key=lambda trial: SIMPLEST.index(trial.reducer))
        ranked += [simplest, *(trial for trial in of_size if trial is not simplest)]

    return ranked


def _build_recommendation(
    debiasing: DebiasingComparison, sizes: SizeComparison, trial: SizeTrial | None, keep: float
) -> Recommendation:
    """Build the recommendation of the chosen debiasing and a reduction: steps, bytes, reasons and cost.
    If `trial` is None, there is no reduction.
    """
    measured = trial or sizes.full
    steps = [debiasing.trial(debiasing.chosen).steps] if debiasing.chosen != NOTHING else []
    steps += [REDUCERS[trial.reducer].format(k=trial.dimensions)] if trial else []
    method = "No debiasing" if debiasing.chosen == NOTHING else debiasing.chosen

    return Recommendation(
        steps=",".join(steps),
        debiasing=debiasing.chosen,
        reducer=measured.reducer,
        dimensions=measured.dimensions,
        bytes=measured.bytes,
        keeps=trial is None or _preserves_enough(trial, sizes.full, keep),
        reasons=[
            f"{method}: {debiasing.why}.",
            _explain_size(sizes, trial, keep),
            *([] if trial is None else [_explain_reducer(sizes, trial)]),
        ],
        cost=describe_cost(sizes, measured, debiasing.chosen),
    )


def _explain_size(sizes: SizeComparison, trial: SizeTrial | None, keep: float) -> str:
    """Return a sentence on why these output dimensions were chosen.

    Args:
        sizes: comparison of reducers.
        trial: the chosen reduction; None for full dimensions.
        keep: share that must be preserved.
    """
    if sizes.rows < MIN_HELDOUT:
        return f"The full width: among {sizes.rows:,} held-out rows it cannot be told what a size keeps."

    floors = f"{100 * keep:g} % of the ten nearest neighbours with rescoring"
    if any(size_trial.retrieval is not None for size_trial in sizes.trials):
        floors += " and of the score in split-half retrieval"

    if trial is None:
        return f"The full width: no size that was tried keeps {floors}."
    if not _preserves_enough(trial, sizes.full, keep):
        return f"{trial.dimensions} dimensions: the nearest to keeping {floors}."

    return f"{trial.dimensions} dimensions: the fewest that keep {floors}, by the lower bounds of their intervals."


def _explain_reducer(sizes: SizeComparison, trial: SizeTrial) -> str:
    """Return a sentence that compares the chosen reducer's recall@10 with that of the others at its dimensions."""
    of_size = [size_trial for size_trial in sizes.trials if size_trial.dimensions == trial.dimensions]
    each = ", ".join(f"{size_trial.reducer} {size_trial.recall_at_10:.3f}" for size_trial in of_size)
    best = max(of_size, key=lambda size_trial: size_trial.recall_at_10)
    below = best.recall_at_10 - trial.recall_at_10

    if trial is best:
        verdict = "it is the best there"
    elif below <= EQUAL_RECALL and SIMPLEST.index(trial.reducer) < SIMPLEST.index(best.reducer):
        verdict = f"it is simpler than {best.reducer}, and no further below than {EQUAL_RECALL:g}"
    else:
        verdict = f"it is {below:.3f} below {best.reducer}"

    return f"{trial.reducer}: recall@10 without rescoring is {each} at that size; {verdict}."
