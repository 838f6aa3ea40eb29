"""What a learned reduction can be asked to keep of a batch, each with its gradient in closed form.

An objective takes a batch `(m, d)` and outputs of it, each `(m, p)`, and gives for each its loss
and the gradient with respect to it. `through_map` carries that on to the weight of a linear map.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from transforms.learned.losses.positional import Graded
from transforms.learned.soft_rank import soft_ranks

Objective = Callable[[Tensor, Sequence[Tensor]], list[Graded]]

AnchorGraded = tuple[Tensor, Tensor]
"""The losses of some anchors `(b,)`, and their gradients with respect to their outputs' cosines `(b, n)`."""

AnchorMeasure = Callable[[int, Tensor], AnchorGraded]
"""From the number of an output and the cosines `(b, n)` of some anchors in it to all others."""

TEMPERATURE = 0.05
"""Of `divergence`: cosines this much smaller weigh 1/e."""

BLOCK_ENTRIES = 2**19
"""Similarities of some anchors to the whole batch that are held at once, by default."""

SHARES = (0.1, 0.7, 0.2)
"""Of the three losses in `blend`; see `GeoPres` for what others cost."""

SMALLEST_SPREAD = 8
"""Times eps√n: n cosines whose length about their mean is less are all the same, and correlate with nothing."""

SMALLEST_LENGTH = 1e-6
"""Shorter outputs pull on nothing: their direction is rounding error."""


def through_map(
    objective: Objective,
    x: Tensor,
    weight: Tensor,
    sizes: Sequence[int],
    importance: Sequence[float],
    normalized: bool = True,
) -> tuple[list[float], Tensor]:
    """The loss of every prefix of a linear map's output, and the gradient of their weighted sum.

    Args:
        objective: of the outputs.
        x: a batch `(m, d)`.
        weight: W, `(k, d)`.
        sizes: the prefixes, each at most k.
        importance: what each loss counts for in the gradient.
        normalized: whether the outputs are brought to unit length first.

    Returns:
        The losses, and Σ importance_p · ∂L_p/∂W, `(k, d)`.
    """
    y = x @ weight.T
    outputs = [y[:, :size] for size in sizes]
    lengths = [z.norm(dim=1, keepdim=True).clamp_(min=SMALLEST_LENGTH) for z in outputs] if normalized else []
    if normalized:
        outputs = [z / length for z, length in zip(outputs, lengths, strict=True)]
    gradient = torch.zeros_like(weight)
    losses = []
    for index, (loss, along) in enumerate(objective(x, outputs)):
        losses.append(loss)
        if normalized:  # what points along an output is undone by normalising it
            z = outputs[index]
            along = (along - (along * z).sum(1, keepdim=True) * z) / lengths[index]
            along = along.masked_fill_(lengths[index] <= SMALLEST_LENGTH, 0)
        gradient[: sizes[index]] += importance[index] * (along.T @ x)
    return losses, gradient


def angular(x: Tensor, outputs: Sequence[Tensor]) -> list[Graded]:
    """The angular loss, GeoPres Eq. 3: the mean squared error of the cosines of all pairs.

    With unit rows X and Z, L = ‖ZZᵀ − XXᵀ‖²_F/(m(m−1)) = (‖ZᵀZ‖² − 2‖XᵀZ‖² + ‖XᵀX‖²)/(m(m−1)) and
    ∂L/∂Z = 4/(m(m−1)) (Z ZᵀZ − X XᵀZ): no matrix of pairs is needed, the cost is that of a few
    d × p products. Rows must be of unit length.
    """
    pairs = x.shape[0] * (x.shape[0] - 1)
    among_x = (x.T @ x).double().square().sum()
    graded = []
    for z in outputs:
        among_z, across = z.T @ z, x.T @ z
        loss = among_x - 2 * across.double().square().sum() + among_z.double().square().sum()
        graded.append((max(0.0, float(loss)) / pairs, (4 / pairs) * (z @ among_z - x @ across)))
    return graded


def spearman(
    x: Tensor, outputs: Sequence[Tensor], strength: float = 1.0, block_entries: int = BLOCK_ENTRIES
) -> list[Graded]:
    """1 − the mean over anchors of the correlation of soft ranks: GeoPres, Appendix A.1.2.

    The ranks of an anchor's cosines to all others, before and after, by `soft_ranks`. With the
    published strength of 1 those are an affine function of the cosines, and this is the mean of
    1 − Pearson correlation. Rows must be of unit length.

    Args:
        x: `(m, d)`.
        outputs: each `(m, p)`.
        strength: of the regularisation, above 0; the smaller, the closer to ranks.
        block_entries: similarities that are held at once.
    """

    def prepare(before: Tensor) -> AnchorMeasure:
        wanted = standardised(soft_ranks(before, strength)[0])

        def measure(_index: int, after: Tensor) -> AnchorGraded:
            found, pull_back = soft_ranks(after, strength)
            losses, along = one_minus_pearson(wanted, found)
            return losses, pull_back(along)

        return measure

    return of_cosines(x, outputs, prepare, block_entries)


def blend(
    x: Tensor, outputs: Sequence[Tensor], starts: Sequence[Sequence[float]], block_entries: int = BLOCK_ENTRIES
) -> list[Graded]:
    """Three losses, each relative to its start, added by `SHARES`: `angular`, 1 − Pearson, and neighbours.

    They mind different things: the size of every cosine, the order of an anchor's cosines, and
    who is near. Rows must be of unit length.

    Args:
        x: `(m, d)`.
        outputs: each `(m, p)`.
        starts: for each output what each of the three was, from `blend_starts`.
        block_entries: similarities that are held at once.
    """
    weights = [[share / max(loss, 1e-12) for share, loss in zip(SHARES, start, strict=True)] for start in starts]

    def prepare(before: Tensor) -> AnchorMeasure:
        wanted, nearness = standardised(before), (before / TEMPERATURE).softmax(1)

        def measure(index: int, after: Tensor) -> AnchorGraded:
            _, for_correlation, for_neighbours = weights[index]
            one, along = one_minus_pearson(wanted, after)
            other, across = divergence(nearness, after)
            return for_correlation * one + for_neighbours * other, along.mul_(for_correlation).add_(
                across, alpha=for_neighbours
            )

        return measure

    of_pairs, of_anchors = angular(x, outputs), of_cosines(x, outputs, prepare, block_entries)
    return [
        (weight[0] * first + second, weight[0] * along + across)
        for weight, (first, along), (second, across) in zip(weights, of_pairs, of_anchors, strict=True)
    ]


def blend_starts(x: Tensor, outputs: Sequence[Tensor]) -> list[list[float]]:
    """For each output the three losses that `blend` takes its own relative to."""

    def correlation(before: Tensor) -> AnchorMeasure:
        wanted = standardised(before)
        return lambda _index, after: one_minus_pearson(wanted, after)

    def neighbours(before: Tensor) -> AnchorMeasure:
        nearness = (before / TEMPERATURE).softmax(1)
        return lambda _index, after: divergence(nearness, after)

    graded = [angular(x, outputs), of_cosines(x, outputs, correlation), of_cosines(x, outputs, neighbours)]
    return [[of_one[index][0] for of_one in graded] for index in range(len(outputs))]


def of_cosines(
    x: Tensor,
    outputs: Sequence[Tensor],
    prepare: Callable[[Tensor], AnchorMeasure],
    block_entries: int = BLOCK_ENTRIES,
) -> list[Graded]:
    """Losses that are means over anchors of a function of their cosines to all other rows.

    Args:
        x: `(m, d)`.
        outputs: each `(m, p)`.
        prepare: from the cosines of some anchors in `x`, what measures those in an output.
        block_entries: similarities of some anchors to the whole batch that are held at once.
    """
    m = x.shape[0]
    totals = [0.0] * len(outputs)
    gradients = [torch.zeros_like(z) for z in outputs]
    step = max(1, block_entries // m)
    for start in range(0, m, step):
        rows = slice(start, min(start + step, m))
        measure = prepare(cosines_to_others(x, rows))
        for index, z in enumerate(outputs):
            losses, along = measure(index, cosines_to_others(z, rows))
            pull = with_zero_for_itself(along, rows)
            totals[index] += float(losses.sum(dtype=torch.float64))
            gradients[index][rows].addmm_(pull, z)
            gradients[index].addmm_(pull.T, z[rows])
    return [(total / m, gradient.div_(m)) for total, gradient in zip(totals, gradients, strict=True)]


def cosines_to_others(z: Tensor, rows: slice) -> Tensor:
    """Cosines of some rows to all others `(b, m−1)`; the last column stands where a row would meet itself."""
    cosines = z[rows] @ z.T
    itself = torch.arange(rows.start, rows.stop, device=z.device).unsqueeze(1)
    return cosines.scatter_(1, itself, cosines[:, -1:].clone())[:, :-1]


def with_zero_for_itself(along: Tensor, rows: slice) -> Tensor:
    """The same order undone, `(b, m−1)` to `(b, m)`, with zero where a row meets itself."""
    itself = torch.arange(rows.start, rows.stop, device=along.device).unsqueeze(1)
    whole = torch.nn.functional.pad(along, (0, 1))
    whole[:, -1:] = whole.gather(1, itself)
    return whole.scatter_(1, itself, 0.0)


def standardised(values: Tensor) -> Tensor:
    """Rows `(b, n)` less their means and of unit length; what does not vary becomes zero."""
    return torch.nn.functional.normalize(values - values.mean(1, keepdim=True), eps=smallest_spread(values))


def smallest_spread(values: Tensor) -> float:
    """Rows `(b, n)` that are shorter than this, about their mean, are rounding error."""
    return SMALLEST_SPREAD * torch.finfo(values.dtype).eps * math.sqrt(values.shape[1])


def one_minus_pearson(wanted: Tensor, found: Tensor) -> AnchorGraded:
    """1 − the correlation of standardised rows with others `(b, n)`, and its gradient with respect to those."""
    b = found - found.mean(1, keepdim=True)
    lengths = b.norm(dim=1, keepdim=True).clamp_(min=smallest_spread(found))
    correlation = torch.linalg.vecdot(wanted, b).unsqueeze(1).div_(lengths)
    return 1 - correlation.squeeze(1), b.mul_(correlation / lengths).sub_(wanted).div_(lengths)


def divergence(nearness: Tensor, after: Tensor) -> AnchorGraded:
    """KL(p‖q) of rows `(b, n)`, q the softmax of the cosines after/`TEMPERATURE`, and its gradient.

    As in stochastic neighbour embedding (Hinton and Roweis, 2002), with p the same of the cosines
    before: it minds who is near, and cares little how far the far ones are.
    """
    log_q = (after / TEMPERATURE).log_softmax(1)
    losses = torch.xlogy(nearness, nearness).sum(1) - torch.linalg.vecdot(nearness, log_q)
    return losses, log_q.exp_().sub_(nearness).div_(TEMPERATURE)
