"""Cost of a recommended chain, as sentences: bytes, search speed, and lost or changed neighbours."""

from collections.abc import Iterator

from lathe.training.advice.debiasing import NOTHING, DebiasingTrial
from lathe.training.advice.sizes import NEIGHBOURS, OVERSAMPLING, SizeComparison, SizeTrial
from lathe.training.advice.transfer import TransferResult


def describe_cost(sizes: SizeComparison, own: SizeTrial, debiasing: str) -> str:
    """Describe in a sentence the bytes and time that a reduction saves, and the recall that it loses.
    Without a reduction, the sentence names only the bytes.

    Args:
        sizes: comparison of reducers.
        own: measurements of the recommended reduction, or `sizes.full` for none.
        debiasing: name of the debiasing method in front of it.
    """
    full = sizes.full
    if own is full:
        return f"{full.bytes:,} bytes a vector, as before."

    kind = "full" if debiasing == NOTHING else "debiased"
    lost = (
        f"among {sizes.rows:,} rows recall@10 of the neighbours that the {kind} vectors have is "
        f"{own.recall_at_10:.3f}, and {own.rescored_4x.value:.3f} where {NEIGHBOURS * OVERSAMPLING} candidates are "
        "ranked again by these, which must stay for that"
    )
    if own.loss is not None:
        lost += f"; mean reciprocal rank in split-half retrieval {own.loss.value:+.2f} points"

    return (
        f"{own.bytes:,} bytes to search instead of {full.bytes:,} ({100 * (1 - own.bytes / full.bytes):.0f} % less), "
        f"similarities about {full.gemm_ms / own.gemm_ms:.0f}× as fast; {lost}."
    )


def describe_changed_neighbours(trial: DebiasingTrial, reduced: bool, here: TransferResult) -> Iterator[str]:
    """Yield sentences on how many of the raw vectors' nearest neighbours a debiasing chain changes.
    Nothing is yielded if the chain does not debias.

    Args:
        trial: measurements of the chain's debiasing method.
        reduced: whether a reducer follows it.
        here: measures of the whole chain on held-out rows.
    """
    if trial.method == NOTHING:
        return

    if trial.recall_at_10 is not None:
        changed = f"{NEIGHBOURS * (1 - trial.recall_at_10):.1f} of the ten nearest neighbours"
        yield f"{trial.method} changes {changed} that the raw vectors have, on purpose."

    recall, rescored = (here.measures[name] for name in ("recall_at_10", "recall_at_10_rescored_4x"))
    if reduced and recall is not None and rescored is not None:
        yield (
            f"Of the neighbours that the raw vectors have among {here.rows:,} rows the whole chain finds {recall:.3f}, "
            f"and {rescored:.3f} where the candidates are ranked again by the raw vectors, as an index does."
        )
