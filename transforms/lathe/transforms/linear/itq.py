"""Rotations of an embedding space after which the signs of coordinates say more: iterative quantization (ITQ)."""

import numpy as np
import torch
from numpy.typing import NDArray

from lathe.transforms.base import FLAG, SEED, FitContext, Signature, whole_number
from lathe.transforms.errors import InputError
from lathe.transforms.linear.affine import Linear
from lathe.transforms.statistics import Moments, draw_rotation, unit_rows
from lathe.transforms.vectors import Vectors, as_tensor, finite_blocks

MAX_ROTATION_ROWS = 20_000
"""Maximum number of rows that the rotation is learned from, drawn at random."""


class ITQ(Linear):
    """Orthogonal map after which the coordinates of rows are close to their signs.

    It is meant for a vector store that keeps one bit or one small integer of each coordinate. Nothing is lost: inner
    products and cosines stay as they are, so that rescoring by what a store holds finds what it found before. What a
    store's own quantizer loses of them becomes less.

    y = Rx with R orthogonal and ‖sign(XRᵀ) − XRᵀ‖ small, by alternating B = sign(XRᵀ) and the orthogonal Procrustes
    solution of B against X, from a random rotation: Gong and Lazebnik, *Iterative Quantization* (CVPR 2011), Algorithm
    1, without its projection on principal components. X are the unit vectors of the rows.

    With `aligned`, the first coordinate is the one along the mean, whose sign is the same for nearly all rows, and the
    rotation is learned from the centred coordinates orthogonal to it: their signs are balanced. Use it for stores that
    keep the sign alone. A store that divides one range for all coordinates into integers loses by it.

    Args:
        aligned: whether the first coordinate is the one along the mean.
        iterations: rounds of the two steps.
        seed: seed of the first rotation, and of the choice of rows if there are more than `MAX_ROTATION_ROWS`.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import ITQ, Chain
        >>> rows = np.random.default_rng(0).normal(size=(500, 8)).astype(np.float32) + 1
        >>> chain = Chain([ITQ(aligned=True)]).fit(rows)
        >>> bool((chain.transform(rows)[:, 0] > 0).mean() > .95)
        True
    """

    kind = "itq"
    parameter_rules = {"aligned": FLAG, "iterations": whole_number(0), "seed": SEED}
    orthogonal_rows = True
    shapes = {**Linear.shapes, "weight": ("d", "d")}

    def __init__(self, aligned: bool = False, iterations: int = 30, seed: int = 0) -> None:
        super().__init__()
        self.aligned = aligned
        self.iterations = iterations
        self.seed = seed

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the signature (dimensions, rank) of the inputs, because a rotation changes neither."""
        return inputs

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Learn the rotation R by iterative quantization, and store it as the weight `(d, d)`. Moments alone raise.

        Raises:
            InputError: for moments alone, or if `aligned` and the mean is exactly zero, so that it has no direction.
        """
        if isinstance(data, Moments):
            raise InputError(f"{self.kind} is fitted on rows, not on moments alone")
        for _ in finite_blocks(data):  # a bad row is named whether or not it is drawn
            pass
        random = np.random.default_rng(self.seed)
        count, dimensions = data.shape
        chosen = np.sort(random.permutation(count)[:MAX_ROTATION_ROWS]) if count > MAX_ROTATION_ROWS else slice(None)
        rows: NDArray[np.float64] = unit_rows(as_tensor(data[chosen], like=torch.empty(0)).double()).numpy()

        frame = np.eye(dimensions)
        if self.aligned:
            frame = _complete_orthonormal_basis(rows.mean(axis=0))
            rows = (rows @ frame[1:].T) - (rows.mean(axis=0) @ frame[1:].T)
        rotation = draw_rotation(rows.shape[1], random)
        for number in range(self.iterations):
            context.report(number / self.iterations, f"{self.kind}, round {number + 1} of {self.iterations}")
            signs = np.where(rows @ rotation.T >= 0, 1.0, -1.0)
            # The rotation that brings the rows closest to their signs, UVᵀ of the SVD of BᵀX (Schönemann, 1966).
            left, _, right = np.linalg.svd(signs.T @ rows)
            rotation = left @ right

        frame[-len(rotation) :] = rotation @ frame[-len(rotation) :]
        self.set_map(torch.from_numpy(frame))


def _complete_orthonormal_basis(mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an orthogonal matrix `(d, d)` whose first row is the direction of the mean `(d,)`. A zero mean raises.

    Raises:
        InputError: if the mean is exactly zero.
    """
    norm = np.linalg.norm(mean)
    if norm == 0:
        raise InputError("the mean of these vectors is exactly zero: it has no direction to align with")
    # A Householder reflection of the first axis to the mean; the sign is the one that does not cancel digits.
    direction = mean / norm
    sign = 1.0 if direction[0] >= 0 else -1.0
    normal = direction.copy()
    normal[0] += sign
    frame = np.eye(len(mean)) - 2 * np.outer(normal, normal) / (normal @ normal)
    frame[0] = direction
    return np.asarray(frame)
