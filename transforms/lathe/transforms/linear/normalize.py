"""L2 normalization as a step of a chain."""

from torch import Tensor

from lathe.transforms.base import FitContext, Signature, Transform
from lathe.transforms.statistics import Moments, unit_rows
from lathe.transforms.vectors import Vectors


class Normalize(Transform):
    """L2 normalization, x / ‖x‖.

    Zero rows stay zero. Nothing is learned, and the norms are lost.
    """

    kind = "normalize"

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the input signature unchanged: normalizing keeps the dimensions."""
        return inputs

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Do nothing: normalization has no fitted state."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize rows to L2 norm 1, `(n, d)` to `(n, d)`.

        Near-zero rows become zeros.
        """
        return unit_rows(x)
