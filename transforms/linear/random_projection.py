"""Random projection: a reduction that learns nothing, which every learned one must beat."""

import numpy as np
import torch

from transforms.base import FitContext, Signature, require_seed, require_whole
from transforms.linear.linear import Linear
from transforms.statistics import Moments, dimensions_of
from transforms.vectors import Vectors


class RandomProjection(Linear):
    """xWᵀ with the entries of W `(k, d)` drawn from N(0, 1/k) by `seed`: lengths stay, on average.

    Johnson and Lindenstrauss (1984). The GeoPres paper's baseline draws from N(0, 1) and does not scale, so that its
    positional loss cannot be compared with this one's.
    """

    kind = "random_projection"
    learns_from = "nothing"

    def __init__(self, dimensions: int, seed: int = 0) -> None:
        super().__init__()
        self.dimensions = dimensions
        self.seed = seed

    def check_parameters(self) -> None:
        """Raise `StepError` for a parameter out of range."""
        require_whole(self.kind, "dimensions", self.dimensions, at_least=1)
        require_seed(self.kind, self.seed)

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the reduced signature.

        Raises:
            StepError: if the inputs have fewer dimensions.
        """
        return inputs.reduce(self.kind, self.dimensions)

    @property
    def learned_directions(self) -> int:
        """Zero: the directions are drawn, not learned."""
        return 0

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Draw the weight; of the data only the number of dimensions is used."""
        entries = np.random.default_rng(self.seed).standard_normal((self.dimensions, dimensions_of(data)))
        self.set_map(torch.from_numpy(entries / np.sqrt(self.dimensions)))
