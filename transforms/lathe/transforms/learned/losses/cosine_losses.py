"""Losses that compare the cosines between rows of a batch before and after a reduction of dimensions.

x `(m, d)` are the rows before, and an output z `(m, p)` the same rows after; all rows have unit length. A batch may
have several outputs, as with nested dimensions. A loss returns a pair (loss, gradient with respect to z) for each.

angular_loss     mean squared difference of all cosines; a closed form without an m × m matrix
spearman_loss    1 − correlation of the soft ranks of an anchor's cosines (GeoPres, Appendix A.1.2)
blended_loss     weighted sum of the angular loss, 1 − Pearson correlation, and a neighbour divergence: the default

The last two average a loss over anchors: every row is an anchor once, and its cosines to the m−1 other rows are
compared with the cosines in x. `_average_over_anchors` does this for blocks of b anchors, with two functions:

    prepare(cosines in x (b, m−1))                → AnchorLoss, for this block of anchors
    AnchorLoss(output's index, its cosines)       → losses (b,), gradient with respect to the cosines (b, m−1)
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lathe.transforms.learned.losses.loss import LossAndGradient

AnchorLossAndGradient = tuple[Tensor, Tensor]
"""Losses of b anchors `(b,)`, and the gradient of their sum with respect to the anchors' cosines `(b, n)`."""

AnchorLoss = Callable[[int, Tensor], AnchorLossAndGradient]
"""Function of the index of an output, and the cosines `(b, n)` in that output from b anchors to all other rows."""

MAX_BLOCK_ENTRIES = 2**19
"""Default maximum number of cosines between a block of anchors and the whole batch that are in memory at a time."""

MIN_SPREAD = 8
"""Factor of eps·√n. If the L2 norm of n centred cosines is smaller, they are rounding error, and their correlation is
about 0."""


def _average_over_anchors(
    x: Tensor,
    outputs: Sequence[Tensor],
    prepare: Callable[[Tensor], AnchorLoss],
    block_entries: int = MAX_BLOCK_ENTRIES,
) -> list[LossAndGradient]:
    """Compute, for each output, a loss on the cosines of each row to other rows, averaged over the unit-length rows.

    Anchors are processed in blocks, so that memory does not hold all m × m cosines.

    Args:
        x: batch of rows, `(m, d)`.
        outputs: outputs of the batch, `(m, p)` each.
        prepare: takes the cosines in `x` from a block of anchors to the other rows, `(b, m−1)`, and returns the loss of
            the same cosines in an output.
        block_entries: maximum number of cosines in memory at a time.

    Returns:
        One pair (loss, gradient with respect to the output `(m, p)`) for each output.
    """
    m = x.shape[0]
    totals = [0.0] * len(outputs)
    gradients = [torch.zeros_like(z) for z in outputs]
    block_rows = max(1, block_entries // m)

    for start in range(0, m, block_rows):
        anchors = slice(start, min(start + block_rows, m))
        anchor_loss = prepare(_cosines_to_others(x, anchors))
        for index, z in enumerate(outputs):
            losses, gradient = anchor_loss(index, _cosines_to_others(z, anchors))
            full_gradient = _expand_to_all_columns(gradient, anchors)
            totals[index] += float(losses.sum(dtype=torch.float64))
            # A cosine z_i·z_j has a gradient for both rows: G Z for the anchors, Gᵀ Z[anchors] for the other rows.
            gradients[index][anchors].addmm_(full_gradient, z)
            gradients[index].addmm_(full_gradient.T, z[anchors])

    return [(total / m, gradient.div_(m)) for total, gradient in zip(totals, gradients, strict=True)]


def _standardize_rows(values: Tensor) -> Tensor:
    """Subtract the mean from each row of `values` `(b, n)`, then divide the row by its L2 norm.

    A norm smaller than `_min_length` is replaced by `_min_length`.
    """
    return torch.nn.functional.normalize(values - values.mean(1, keepdim=True), eps=_min_length(values))


def _one_minus_pearson(standardized_targets: Tensor, values: Tensor) -> AnchorLossAndGradient:
    """Compute 1 − the Pearson correlation of each row of `values` with its target.

    Targets are rows that `_standardize_rows` returned.

    Returns:
        The losses `(b,)`, and their gradient with respect to `values`, `(b, n)`.
    """
    centred = values - values.mean(1, keepdim=True)
    lengths = centred.norm(dim=1, keepdim=True).clamp_(min=_min_length(values))
    correlation = torch.linalg.vecdot(standardized_targets, centred).unsqueeze(1).div_(lengths)
    # With v the centred values, t the target and r = t·v/‖v‖: ∂(1 − r)/∂v = (r v/‖v‖ − t)/‖v‖. v and t sum
    # to 0, so the gradient does too, and centring adds nothing to the chain rule.
    gradient = centred.mul_(correlation / lengths).sub_(standardized_targets).div_(lengths)
    return 1 - correlation.squeeze(1), gradient


def _cosines_to_others(z: Tensor, anchors: slice) -> Tensor:
    """Compute the cosines of the unit rows `z[anchors]` to the m−1 other rows, `(b, m−1)`.

    The columns are not in the order of the rows: the last column of the `(b, m)` cosines moves to the place of each
    anchor's cosine with itself.
    """
    cosines = z[anchors] @ z.T
    own_columns = torch.arange(anchors.start, anchors.stop, device=z.device).unsqueeze(1)
    # The losses do not depend on the order of the columns, which is the same in x and in the outputs. The copy is
    # needed because the source and the target of `scatter_` may not share memory.
    return cosines.scatter_(1, own_columns, cosines[:, -1:].clone())[:, :-1]


def _expand_to_all_columns(gradient: Tensor, anchors: slice) -> Tensor:
    """Expand a gradient for the cosines of `_cosines_to_others` `(b, m−1)` to the cosines with all m rows, `(b, m)`.

    The columns are in the order of the rows. The gradient of an anchor's cosine with itself is 0.
    """
    own_columns = torch.arange(anchors.start, anchors.stop, device=gradient.device).unsqueeze(1)
    expanded = torch.nn.functional.pad(gradient, (0, 1))
    expanded[:, -1:] = expanded.gather(1, own_columns)
    return expanded.scatter_(1, own_columns, 0.0)


def _min_length(values: Tensor) -> float:
    """Return the L2 norm below which a centred row of `values` `(b, n)` counts as rounding error: 8·eps·√n."""
    return MIN_SPREAD * torch.finfo(values.dtype).eps * math.sqrt(values.shape[1])


def angular_loss(x: Tensor, outputs: Sequence[Tensor]) -> list[LossAndGradient]:
    """Compute, for each output, the mean squared difference of the cosines of unit rows from the cosines in `x`.

    GeoPres, Eq. 3. With unit rows X `(m, d)` and Z `(m, p)`, L = ‖ZZᵀ − XXᵀ‖²_F/(m(m−1)) = (‖ZᵀZ‖² − 2‖XᵀZ‖² +
    ‖XᵀX‖²)/(m(m−1)) and ∂L/∂Z = 4/(m(m−1)) (Z ZᵀZ − X XᵀZ). No m × m matrix is needed, only a few products of size d ×
    p. Rows must have unit length.

    Returns:
        One pair (loss, gradient with respect to the output `(m, p)`) for each output.

    Example:
        >>> import torch
        >>> from lathe.transforms.learned.losses import angular_loss
        >>> x, z = torch.eye(2), torch.tensor([[1.0], [1.0]])  # the cosine grows from 0 to 1
        >>> [(loss, gradient)] = angular_loss(x, [z])
        >>> loss, gradient.shape
        (1.0, torch.Size([2, 1]))
    """
    pairs = x.shape[0] * (x.shape[0] - 1)
    among_x = (x.T @ x).double().square().sum()
    results = []

    for z in outputs:
        among_z, across = z.T @ z, x.T @ z
        # The three terms nearly cancel if cosines are retained, so they are summed in float64 and clamped at 0.
        loss = among_x - 2 * across.double().square().sum() + among_z.double().square().sum()
        results.append((max(0.0, float(loss)) / pairs, (4 / pairs) * (z @ among_z - x @ across)))

    return results


def soft_ranks(values: Tensor, strength: float) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Compute the soft ranks of the values in each row, centred at 0, and return them and the gradient function.

    The ranks are the projection of values/strength on the permutahedron of (1, …, n) − (n+1)/2: Blondel, Teboul,
    Berthet and Djolonga, *Fast Differentiable Sorting and Ranking* (2020), Prop. 3, for all rows at once. Where sorted
    neighbours differ by more than `strength`, soft ranks equal centred ascending ranks, with ties averaged. Where
    neighbours differ by less, their ranks are partly averaged. If all differ by less, soft ranks are an affine function
    of the values. Ranks are centred, because a float32 cosine added to ranks of thousands would lose digits.

    Args:
        values: `(b, n)`.
        strength: strength of the quadratic regularization, above 0.

    Returns:
        The soft ranks, `(b, n)`, and a function that maps the gradient with respect to the soft ranks, `(b, n)`, to the
        gradient with respect to the values, `(b, n)`.
    """
    n = values.shape[1]
    ordered, order = (values / strength).sort(dim=1, descending=True)
    ranks = torch.arange(n, 0, -1, dtype=values.dtype, device=values.device) - (n + 1) / 2
    groups, dual = non_increasing_regression(ordered - ranks)
    # Prop. 3: the projection is s − v, s the sorted values and v the isotonic regression of s minus the ranks.
    soft = torch.empty_like(values).scatter_(1, order, ordered - dual)

    def backward(gradient: Tensor) -> Tensor:
        sorted_gradient = gradient.gather(1, order)
        # The Jacobian is the identity minus averaging within groups, which is symmetric and so its own transpose.
        means = _average_groups(sorted_gradient, groups)
        return torch.empty_like(values).scatter_(1, order, (sorted_gradient - means) / strength)

    return soft, backward


def non_increasing_regression(values: Tensor) -> tuple[Tensor, Tensor]:
    """Fit a non-increasing sequence to each row by least squares (isotonic regression). Returns groups and means.

    Adjacent violators are pooled, for all rows at once. Neighbouring groups whose means increase end in one group
    whatever the order of pooling, so every round pools all such runs. One round is enough if every entry increases;
    slightly smoothed ranks of cosines take about a hundred rounds, and n/2 is the worst case.

    Args:
        values: `(b, n)`.

    Returns:
        The group of each entry, `(b, n)`, counted from 0 along the row, and the mean of each entry's group, `(b, n)`,
        which is the fitted value.
    """
    groups = torch.arange(values.shape[1], device=values.device).expand(values.shape)
    while True:
        means = _average_groups(values, groups)
        starts = torch.ones_like(groups, dtype=torch.bool)
        starts[:, 1:] = (groups[:, 1:] != groups[:, :-1]) & (means[:, 1:] <= means[:, :-1])
        pooled = starts.cumsum(1) - 1
        if torch.equal(pooled, groups):
            return groups, means
        groups = pooled


def _average_groups(values: Tensor, groups: Tensor) -> Tensor:
    """Compute, for each entry of `values` `(b, n)`, the mean of the entries of its row in the same group.

    `groups` `(b, n)` numbers the groups. Sums are computed in float64.
    """
    sums = torch.zeros_like(values, dtype=torch.float64).scatter_add_(1, groups, values.double())
    counts = torch.zeros_like(sums).scatter_add_(1, groups, torch.ones_like(sums))
    # A row with few groups has group numbers without entries, for which the mean would be 0/0.
    return (sums / counts.clamp_(min=1)).gather(1, groups).to(values.dtype)


def spearman_loss(
    x: Tensor, outputs: Sequence[Tensor], strength: float = 1.0, block_entries: int = MAX_BLOCK_ENTRIES
) -> list[LossAndGradient]:
    """Compute, for each output, 1 − the soft Spearman correlation of unit rows' cosines, averaged over the rows.

    GeoPres, Appendix A.1.2: the Pearson correlation of the soft ranks of an anchor's cosines to all other rows, in `x`
    and in the output, averaged over the anchors. At the published strength of 1 soft ranks are an affine function of
    the cosines, and the loss is 1 − the mean Pearson correlation of the cosines. Rows must have unit length.

    Args:
        x: batch of rows, `(m, d)`.
        outputs: outputs of the batch, `(m, p)` each.
        strength: regularization strength of `soft_ranks`, above 0; the smaller, the closer to ranks.
        block_entries: maximum number of cosines in memory at a time.

    Returns:
        One pair (loss, gradient with respect to the output `(m, p)`) for each output.
    """

    def prepare(original_cosines: Tensor) -> AnchorLoss:
        targets = _standardize_rows(soft_ranks(original_cosines, strength)[0])

        def anchor_loss(_index: int, cosines: Tensor) -> AnchorLossAndGradient:
            ranks, backward = soft_ranks(cosines, strength)
            losses, rank_gradient = _one_minus_pearson(targets, ranks)
            return losses, backward(rank_gradient)

        return anchor_loss

    return _average_over_anchors(x, outputs, prepare, block_entries)


TEMPERATURE = 0.05
"""Softmax temperature of `_neighbour_divergence`: a cosine that is smaller by this has 1/e of the probability."""

SHARES = (0.1, 0.7, 0.2)
"""Weights of the angular, correlation and neighbour losses in `blended_loss`. The docstring of `GeoPres` has results of
other weights."""


def blended_loss(
    x: Tensor, outputs: Sequence[Tensor], starts: Sequence[Sequence[float]], block_entries: int = MAX_BLOCK_ENTRIES
) -> list[LossAndGradient]:
    """Compute, for each output, a weighted sum of three losses that compare unit rows' cosines with the cosines in `x`.

    The losses are `angular_loss`, `_one_minus_pearson` and `_neighbour_divergence`, each divided by its value in
    `starts` and weighted by `SHARES`. They measure the size of every cosine, the order of an anchor's cosines, and
    which rows are near. Rows must have unit length.

    Args:
        x: batch of rows, `(m, d)`.
        outputs: outputs of the batch, `(m, p)` each.
        starts: starting values of the three losses for each output, from `compute_starting_losses`.
        block_entries: maximum number of cosines in memory at a time.

    Returns:
        One pair (loss, gradient with respect to the output `(m, p)`) for each output.
    """
    weights = [[share / max(loss, 1e-12) for share, loss in zip(SHARES, start, strict=True)] for start in starts]

    def prepare(original_cosines: Tensor) -> AnchorLoss:
        targets, probabilities = _standardize_rows(original_cosines), (original_cosines / TEMPERATURE).softmax(1)

        def anchor_loss(index: int, cosines: Tensor) -> AnchorLossAndGradient:
            _, correlation_weight, neighbour_weight = weights[index]
            correlation_losses, gradient = _one_minus_pearson(targets, cosines)
            neighbour_losses, neighbour_gradient = _neighbour_divergence(probabilities, cosines)
            losses = correlation_weight * correlation_losses + neighbour_weight * neighbour_losses
            return losses, gradient.mul_(correlation_weight).add_(neighbour_gradient, alpha=neighbour_weight)

        return anchor_loss

    # The angular loss has a closed form over all pairs of rows. The other two losses need each anchor's cosines.
    angular, averaged = angular_loss(x, outputs), _average_over_anchors(x, outputs, prepare, block_entries)
    return [
        (angular_weight * pair_loss + anchor_loss, angular_weight * pair_gradient + anchor_gradient)
        for (angular_weight, _, _), (pair_loss, pair_gradient), (anchor_loss, anchor_gradient) in zip(
            weights, angular, averaged, strict=True
        )
    ]


def compute_starting_losses(x: Tensor, outputs: Sequence[Tensor]) -> list[list[float]]:
    """Compute, for each output, the three losses that `blended_loss` adds up: angular, 1 − Pearson and neighbour loss.

    Args:
        x: batch of rows of unit length, `(m, d)`.
        outputs: outputs of the batch with the starting weight, `(m, p)` each, rows of unit length.

    Returns:
        Three floats for each output, in this order, which `blended_loss` takes as `starts`.
    """

    def prepare_correlation(original_cosines: Tensor) -> AnchorLoss:
        targets = _standardize_rows(original_cosines)
        return lambda _index, cosines: _one_minus_pearson(targets, cosines)

    def prepare_divergence(original_cosines: Tensor) -> AnchorLoss:
        probabilities = (original_cosines / TEMPERATURE).softmax(1)
        return lambda _index, cosines: _neighbour_divergence(probabilities, cosines)

    results_by_loss = [
        angular_loss(x, outputs),
        _average_over_anchors(x, outputs, prepare_correlation),
        _average_over_anchors(x, outputs, prepare_divergence),
    ]
    # Each result is a list of (loss, gradient), one for each output.
    return [[results[index][0] for results in results_by_loss] for index in range(len(outputs))]


def _neighbour_divergence(target_probabilities: Tensor, cosines: Tensor) -> AnchorLossAndGradient:
    """Compute, for each row, the divergence KL(p‖q) from target probabilities p to the softmax q of the cosines.

    q = softmax(cosines/`TEMPERATURE`); both arguments are `(b, n)`. As in stochastic neighbour embedding (Hinton and
    Roweis, 2002), p is the softmax of the original cosines: it matters which rows are near, and little how far the far
    rows are.

    Returns:
        The divergences `(b,)`, and their gradient with respect to the cosines `(b, n)`.
    """
    p = target_probabilities
    log_q = (cosines / TEMPERATURE).log_softmax(1)
    # xlogy is 0 at p = 0, where p·log p would be NaN.
    losses = torch.xlogy(p, p).sum(1) - torch.linalg.vecdot(p, log_q)
    # ∂KL(p‖q)/∂cosines = (q − p)/temperature, written over log q to save a block of memory.
    return losses, log_q.exp_().sub_(p).div_(TEMPERATURE)
