"""Reductions that learn nothing: the baselines that every learned one must beat."""

import numpy as np
import torch
from torch import Tensor

from transforms.base.signature import Outline
from transforms.base.transform import Inverse, Run, Transform
from transforms.base.validation import require_seed, require_whole
from transforms.linear.affine import Affine
from transforms.linear.linear import Linear
from transforms.linear.normalize import Normalize, unit_rows
from transforms.statistics.moments import Moments, width_of
from transforms.vectors import Vectors


class RandomProjection(Linear):
    """xWᵀ with the entries of W `(k, d)` drawn from N(0, 1/k) by `seed`: lengths stay, on average.

    Johnson and Lindenstrauss (1984). The GeoPres paper's baseline draws from N(0, 1) and does not
    scale, so that its positional loss cannot be compared with this one's.
    """

    kind = "random_projection"
    learns_from = "nothing"

    def __init__(self, dimensions: int, seed: int = 0) -> None:
        require_whole(self.kind, "dimensions", dimensions, at_least=1)
        require_seed(self.kind, seed)
        super().__init__()
        self.dimensions = dimensions
        self.seed = seed

    def after(self, before: Outline) -> Outline:
        """The size reduced to.

        Raises:
            StepError: if that is more than there is.
        """
        return before.reduced(self.kind, self.dimensions)

    @property
    def learned_directions(self) -> int:
        """None: they are drawn."""
        return 0

    def learn(self, data: Moments | Vectors, run: Run) -> None:
        """Draw the weight; of the data only the width counts."""
        entries = np.random.default_rng(self.seed).standard_normal((self.dimensions, width_of(data)))
        self.set_map(torch.from_numpy(entries / np.sqrt(self.dimensions)))


class Selection(Transform, registered=False):
    """Some of the columns.

    Attributes:
        dimensions: k, how many.
        columns: `(k,)`, their numbers.
        width: a number, the columns there are.
    """

    kind = "selection"

    def __init__(self, dimensions: int, columns: Tensor | None = None, width: int | None = None) -> None:
        super().__init__()
        self.dimensions = dimensions
        self.columns: Tensor
        self.width: Tensor
        nothing = [torch.empty(0, dtype=torch.int64) for _ in range(2)]  # a shared buffer would count once
        self.register_buffer("columns", nothing[0] if columns is None else columns)
        self.register_buffer("width", nothing[1] if width is None else torch.tensor(width))

    @property
    def input_dimensions(self) -> int | None:
        """The columns there are; None before the fit."""
        return int(self.width) if self.width.numel() else None

    def after(self, before: Outline) -> Outline:
        """The size reduced to.

        Raises:
            StepError: if that is more than there is.
        """
        return before.reduced(self.kind, self.dimensions)

    def forward(self, x: Tensor) -> Tensor:
        """Choose, `(n, d)` to `(n, k)`."""
        return x[..., self.columns]

    def of(self, affine: Affine) -> Affine:
        """The affine map that does `affine` and then chooses."""
        bias = None if affine.bias is None else affine.bias[self.columns]
        return Affine(affine.weight[self.columns], bias)

    def affine(self) -> Affine:
        """The same as a matrix of zeros and ones."""
        identity = torch.eye(int(self.width), dtype=torch.float64, device=self.columns.device)
        return Affine(identity[self.columns])


class Spread(Transform, registered=False):
    """The columns of a `Selection` put back, zeros between."""

    kind = "spread"

    def __init__(self, columns: Tensor, width: Tensor) -> None:
        super().__init__()
        self.columns: Tensor
        self.width: Tensor
        self.register_buffer("columns", columns)
        self.register_buffer("width", width)

    @property
    def input_dimensions(self) -> int | None:
        """The columns there are to put back."""
        return len(self.columns)

    def forward(self, x: Tensor) -> Tensor:
        """Put back, `(n, k)` to `(n, d)`."""
        y = x.new_zeros(*x.shape[:-1], int(self.width))
        y[..., self.columns] = x
        return y


class RandomSelection(Selection):
    """k columns drawn without replacement by `seed`, in their order: a baseline of the GeoPres paper."""

    kind = "random_selection"
    learns_from = "nothing"

    def __init__(self, dimensions: int, seed: int = 0) -> None:
        require_whole(self.kind, "dimensions", dimensions, at_least=1)
        require_seed(self.kind, seed)
        super().__init__(dimensions)
        self.seed = seed

    def learn(self, data: Moments | Vectors, run: Run) -> None:
        """Draw the columns; of the data only the width counts."""
        width = width_of(data)
        drawn = np.random.default_rng(self.seed).choice(width, self.dimensions, replace=False)
        self.columns, self.width = torch.from_numpy(np.sort(drawn)), torch.tensor(width)

    def primitives(self) -> list[Transform]:
        """The selection."""
        return [Selection(self.dimensions, self.columns, int(self.width))]

    @property
    def inverse_kind(self) -> Inverse:
        """Approximate: what was left out comes back as zeros."""
        return "approximate"

    def inverse(self) -> Transform:
        """Zeros where nothing is known."""
        return Spread(self.columns, self.width)


class Truncation(Selection):
    """The first k columns, renormalised: what `dimensions` does to a Matryoshka-trained encoder."""

    kind = "truncation"
    learns_from = "nothing"
    nested = True

    def __init__(self, dimensions: int) -> None:
        require_whole(self.kind, "dimensions", dimensions, at_least=1)
        super().__init__(dimensions)

    def learn(self, data: Moments | Vectors, run: Run) -> None:
        """Of the data only the width counts."""
        self.columns, self.width = torch.arange(self.dimensions), torch.tensor(width_of(data))

    def forward(self, x: Tensor) -> Tensor:
        """Cut, `(n, d)` to `(n, k)`; a slice, other than a choice of columns, is no copy."""
        return unit_rows(x[..., : self.dimensions])

    def primitives(self) -> list[Transform]:
        """The selection and a normalisation."""
        return [Selection(self.dimensions, self.columns, int(self.width)), Normalize()]
