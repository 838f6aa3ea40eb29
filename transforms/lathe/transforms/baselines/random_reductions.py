"""Random projection and random selection: the untrained baselines that every learned reduction must beat."""

import numpy as np
import torch

from lathe.transforms.base import SEED, FitContext, Map, Signature, whole_number
from lathe.transforms.linear.affine import Linear
from lathe.transforms.linear.selection import FittedSelection, ScatterColumns, Selection
from lathe.transforms.statistics import Moments, dimensions_of
from lathe.transforms.vectors import Vectors


class RandomProjection(Linear):
    """Random projection xWᵀ, with W `(k, d)` drawn from N(0, 1/k) by `seed`.

    Squared norms are kept on average: Johnson and Lindenstrauss (1984). The GeoPres paper's baseline draws from N(0, 1)
    and does not scale, so its positional loss cannot be compared with the loss of this projection.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import RandomProjection
        >>> rows = np.random.default_rng(1).normal(size=(200, 64)).astype(np.float32)
        >>> projected = RandomProjection(32).fit(rows).transform(rows)
        >>> projected.shape, bool(0.8 < (projected**2).sum() / (rows**2).sum() < 1.2)
        ((200, 32), True)
    """

    kind = "random_projection"
    parameter_rules = {"dimensions": whole_number(1), "seed": SEED}

    def __init__(self, dimensions: int, seed: int = 0) -> None:
        super().__init__()
        self.dimensions = dimensions
        self.seed = seed

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the signature (dimensions, rank) of the inputs, reduced to `dimensions` dimensions.

        Raises:
            StepError: if the inputs have fewer dimensions.
        """
        return inputs.reduce(self.kind, self.dimensions)

    @property
    def learned_directions(self) -> int:
        """0, because the directions are drawn at random and not learned."""
        return 0

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Draw the weight `(k, d)` from N(0, 1/k) by `seed`, and store it.

        Of the data, only the number of dimensions is used.
        """
        # Drawn by NumPy, because torch's generators give other numbers on each kind of device.
        entries = np.random.default_rng(self.seed).standard_normal((self.dimensions, dimensions_of(data)))
        self.set_map(torch.from_numpy(entries / np.sqrt(self.dimensions)))


class RandomSelection(FittedSelection):
    """Selection of k random columns, drawn without replacement by `seed`, in order: a baseline of the GeoPres paper.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import RandomSelection
        >>> rows = np.arange(12, dtype=np.float32).reshape(2, 6)
        >>> step = RandomSelection(3, seed=0).fit(rows)
        >>> bool((step.transform(rows) == rows[:, step.columns.numpy()]).all())
        True
    """

    kind = "random_selection"
    inverse_kind = "approximate"  # columns that were not selected come back as zeros
    parameter_rules = {"dimensions": whole_number(1), "seed": SEED}

    def __init__(self, dimensions: int, seed: int = 0) -> None:
        super().__init__(dimensions)
        self.seed = seed

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Draw k distinct column positions at random by `seed`, and store them in ascending order.

        Of the data, only the number of dimensions is used.
        """
        width = dimensions_of(data)
        positions = np.random.default_rng(self.seed).choice(width, self.dimensions, replace=False)
        self.columns, self.width = torch.from_numpy(np.sort(positions)), torch.tensor(width)

    def primitives(self) -> list[Map]:
        """Return a list of one `Selection`, which selects the drawn columns."""
        return [Selection(self.dimensions, self.columns, int(self.width))]

    def inverse(self) -> Map:
        """Return the map that puts the columns back in their positions, with zeros in the others."""
        return ScatterColumns(columns=self.columns, width=self.width)
