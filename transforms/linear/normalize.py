"""L2 normalization as a step of a chain."""

from torch import Tensor

from transforms.base import FitContext, Signature, Transform
from transforms.statistics import Moments, unit_rows
from transforms.vectors import Vectors


class Normalize(Transform):
    """x / ‖x‖; 0 stays 0. Nothing is learned, and the lengths are lost."""

    kind = "normalize"
    learns_from = "nothing"

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the signature of the inputs."""
        return inputs

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Learn nothing."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize rows, `(n, d)` to `(n, d)`."""
        return unit_rows(x)
