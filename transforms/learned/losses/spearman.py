"""The soft Spearman loss of GeoPres."""

from collections.abc import Sequence

from torch import Tensor

from transforms.learned.losses.cosine_losses import (
    MAX_BLOCK_ENTRIES,
    AnchorLoss,
    AnchorLossAndGradient,
    mean_over_anchors,
    one_minus_pearson,
    standardize_rows,
)
from transforms.learned.losses.loss import LossAndGradient
from transforms.learned.losses.soft_rank import soft_ranks


def spearman(
    x: Tensor, outputs: Sequence[Tensor], strength: float = 1.0, block_entries: int = MAX_BLOCK_ENTRIES
) -> list[LossAndGradient]:
    """Compute 1 − the mean over anchors of the correlation of soft ranks: GeoPres, Appendix A.1.2.

    The ranks of an anchor's cosines to all others, before and after, by `soft_ranks`. With the
    published strength of 1 those are an affine function of the cosines, and this is the mean of
    1 − Pearson correlation. Rows must have unit length.

    Args:
        x: `(m, d)`.
        outputs: each `(m, p)`.
        strength: of the regularisation, above 0; the smaller, the closer to ranks.
        block_entries: maximum number of similarities in memory at a time.
    """

    def prepare(before: Tensor) -> AnchorLoss:
        wanted = standardize_rows(soft_ranks(before, strength)[0])

        def anchor_loss(_index: int, after: Tensor) -> AnchorLossAndGradient:
            found, backward = soft_ranks(after, strength)
            losses, along = one_minus_pearson(wanted, found)
            return losses, backward(along)

        return anchor_loss

    return mean_over_anchors(x, outputs, prepare, block_entries)
