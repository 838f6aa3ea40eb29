"""Reductions that select columns: truncation, and a random selection as a baseline."""

import numpy as np
import torch
from torch import Tensor

from transforms.base import FitContext, Inverse, Map, Signature, Transform, require_seed, require_whole
from transforms.linear.affine import Affine
from transforms.linear.normalize import Normalize
from transforms.statistics import Moments, dimensions_of, unit_rows
from transforms.vectors import Vectors


class Selection(Map):
    """Select some of the columns.

    Attributes:
        dimensions: k, number of columns to select.
        columns: `(k,)`, positions of the selected columns.
        width: d as a tensor of one number, so that it is stored with the columns.
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
        """Number of columns to select from; None before the fit."""
        return int(self.width) if self.width.numel() else None

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the reduced signature.

        Raises:
            StepError: if the inputs have fewer dimensions.
        """
        return inputs.reduce(self.kind, self.dimensions)

    def forward(self, x: Tensor) -> Tensor:
        """Select columns, `(n, d)` to `(n, k)`."""
        return x[..., self.columns]

    def select_from(self, affine: Affine) -> Affine:
        """Return the affine map that applies `affine` and then selects."""
        bias = None if affine.bias is None else affine.bias[self.columns]
        return Affine(affine.weight[self.columns], bias)

    def as_affine(self) -> Affine:
        """Return the selection as a matrix of zeros and ones."""
        identity = torch.eye(int(self.width), dtype=torch.float64, device=self.columns.device)
        return Affine(identity[self.columns])


class ScatterColumns(Map):
    """Put selected columns back in their positions, with zeros between: the inverse of a `Selection`."""

    kind = "scatter_columns"

    def __init__(self, columns: Tensor, width: Tensor) -> None:
        super().__init__()
        self.columns: Tensor
        self.width: Tensor
        self.register_buffer("columns", columns)
        self.register_buffer("width", width)

    @property
    def input_dimensions(self) -> int | None:
        """Number of columns to put back."""
        return len(self.columns)

    def forward(self, x: Tensor) -> Tensor:
        """Put the columns back, `(n, k)` to `(n, d)`."""
        y = x.new_zeros(*x.shape[:-1], int(self.width))
        y[..., self.columns] = x
        return y


class RandomSelection(Selection, Transform):
    """Select k columns drawn without replacement by `seed`, in their order: a baseline of the GeoPres paper."""

    kind = "random_selection"
    learns_from = "nothing"

    def __init__(self, dimensions: int, seed: int = 0) -> None:
        super().__init__(dimensions)
        self.seed = seed

    def check_parameters(self) -> None:
        """Raise `StepError` for a parameter out of range."""
        require_whole(self.kind, "dimensions", self.dimensions, at_least=1)
        require_seed(self.kind, self.seed)

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Draw the columns; of the data only the number of dimensions is used."""
        width = dimensions_of(data)
        drawn = np.random.default_rng(self.seed).choice(width, self.dimensions, replace=False)
        self.columns, self.width = torch.from_numpy(np.sort(drawn)), torch.tensor(width)

    def primitives(self) -> list[Map]:
        """Return the selection."""
        return [Selection(self.dimensions, self.columns, int(self.width))]

    @property
    def inverse_kind(self) -> Inverse:
        """Approximate: columns that were not selected come back as zeros."""
        return "approximate"

    def inverse(self) -> Map:
        """Return the map that puts the columns back, with zeros between."""
        return ScatterColumns(self.columns, self.width)


class Truncation(Selection, Transform):
    """Select the first k columns and renormalize: what `dimensions` does to a Matryoshka-trained encoder."""

    kind = "truncation"
    learns_from = "nothing"
    nested = True

    def __init__(self, dimensions: int) -> None:
        super().__init__(dimensions)

    def check_parameters(self) -> None:
        """Raise `StepError` for a parameter out of range."""
        require_whole(self.kind, "dimensions", self.dimensions, at_least=1)

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Store the positions of the columns; of the data only the number of dimensions is used."""
        self.columns, self.width = torch.arange(self.dimensions), torch.tensor(dimensions_of(data))

    def forward(self, x: Tensor) -> Tensor:
        """Truncate and normalize, `(n, d)` to `(n, k)`; a slice is not copied, unlike an indexed selection."""
        return unit_rows(x[..., : self.dimensions])

    def primitives(self) -> list[Map]:
        """Return the selection and a normalization."""
        return [Selection(self.dimensions, self.columns, int(self.width)), Normalize()]
