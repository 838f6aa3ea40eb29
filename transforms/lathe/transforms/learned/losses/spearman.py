"""The soft Spearman loss of GeoPres, Appendix A.1.2."""

from collections.abc import Sequence

from torch import Tensor

from lathe.transforms.learned.losses.cosine_losses import (
    MAX_BLOCK_ENTRIES,
    AnchorLoss,
    AnchorLossAndGradient,
    mean_over_anchors,
    one_minus_pearson,
    standardize_rows,
)
from lathe.transforms.learned.losses.loss import LossAndGradient
from lathe.transforms.learned.losses.soft_rank import soft_ranks


def spearman(
    x: Tensor, outputs: Sequence[Tensor], strength: float = 1.0, block_entries: int = MAX_BLOCK_ENTRIES
) -> list[LossAndGradient]:
    """Return 1 − the mean soft Spearman correlation of rows' cosines to the other rows, in `x` and in each output.

    One loss and gradient for each output.

    GeoPres, Appendix A.1.2: the Pearson correlation of the soft ranks of an anchor's cosines to all other rows, in `x`
    and in the output. At the published strength of 1 soft ranks are an affine function of the cosines, and the loss is
    1 − the mean Pearson correlation of the cosines. Rows must have unit length.

    Args:
        x: batch of rows, `(m, d)`.
        outputs: outputs of the batch, `(m, p)` each.
        strength: regularization strength of `soft_ranks`, above 0; the smaller, the closer to ranks.
        block_entries: maximum number of cosines in memory at a time.
    """

    def prepare(original_cosines: Tensor) -> AnchorLoss:
        targets = standardize_rows(soft_ranks(original_cosines, strength)[0])

        def anchor_loss(_index: int, cosines: Tensor) -> AnchorLossAndGradient:
            ranks, backward = soft_ranks(cosines, strength)
            losses, rank_gradient = one_minus_pearson(targets, ranks)
            return losses, backward(rank_gradient)

        return anchor_loss

    return mean_over_anchors(x, outputs, prepare, block_entries)
