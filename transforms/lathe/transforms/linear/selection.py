"""Selections of columns, and truncation, the reduction that selects the first ones."""

import torch
from torch import Tensor

from lathe.transforms.base import FitContext, Map, Signature, Transform, whole_number
from lathe.transforms.base.validation import MAX_WHOLE
from lathe.transforms.errors import ArtifactError
from lathe.transforms.linear.affine import Affine, Normalize
from lathe.transforms.statistics import Moments, dimensions_of, unit_rows
from lathe.transforms.vectors import Vectors


class Selection(Map):
    """Selection of k columns by position.

    Attributes:
        dimensions: k, number of selected columns.
        columns: `(k,)`, positions of the selected columns.
        width: d, number of input columns, as a 0-d tensor so that it is saved with `columns`.
    """

    kind = "selection"
    columns: Tensor
    width: Tensor

    def __init__(self, dimensions: int, columns: Tensor | None = None, width: int | None = None) -> None:
        super().__init__()
        self.dimensions = dimensions
        empty = [torch.empty(0, dtype=torch.int64) for _ in range(2)]  # one tensor registered twice would count once
        self.register_buffer("columns", empty[0] if columns is None else columns)
        self.register_buffer("width", empty[1] if width is None else torch.tensor(width))

    @property
    def input_dimensions(self) -> int | None:
        """Number of input columns d, or None before the fit."""
        return int(self.width) if self.width.numel() else None

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the signature (dimensions, rank) of the inputs, reduced to `dimensions` dimensions.

        Raises:
            StepError: if the inputs have fewer dimensions.
        """
        return inputs.reduce(self.kind, self.dimensions)

    def forward(self, x: Tensor) -> Tensor:
        """Return a copy of the selected columns of rows, `(n, d)` to `(n, k)`."""
        return x[..., self.columns]

    def select_from(self, affine: Affine) -> Affine:
        """Return one `Affine` that has the effect of `affine` followed by this selection.

        It has the selected rows of the weight and bias. The `normalize` flag of `affine` is ignored.
        """
        bias = None if affine.bias is None else affine.bias[self.columns]
        return Affine(affine.weight[self.columns], bias)

    def as_affine(self) -> Affine:
        """Return the selection as an `Affine` whose weight `(k, d)` holds the selected rows of a float64 identity."""
        identity = torch.eye(int(self.width), dtype=torch.float64, device=self.columns.device)
        return Affine(identity[self.columns])


class ScatterColumns(Map):
    """Inverse of a `Selection`: puts the selected columns back in their positions, with zeros in the others."""

    kind = "scatter_columns"
    columns: Tensor
    width: Tensor

    @property
    def input_dimensions(self) -> int | None:
        """Number of columns to put back, k."""
        return len(self.columns)

    def forward(self, x: Tensor) -> Tensor:
        """Return a new tensor `(n, d)` with the columns of x `(n, k)` at their positions, and zeros in the others."""
        y = x.new_zeros(*x.shape[:-1], int(self.width))
        y[..., self.columns] = x
        return y


class FittedSelection(Selection, Transform, registered=False):
    """Base class of transforms that select columns, whose positions the fit stores."""

    shapes = {"columns": ("k",), "width": ()}
    entry_ranges = {"width": (1, MAX_WHOLE)}

    def check_tensors(self) -> None:
        """Check that the loaded columns are as many as `dimensions`, each one of the `width` input columns.

        Raises:
            ArtifactError: if they are not.
        """
        super().check_tensors()
        self._check_entries("columns", self.columns, 0, int(self.width) - 1)
        if len(self.columns) != self.dimensions:
            raise ArtifactError(f"{self.kind} to {self.dimensions} has {len(self.columns)} columns")


class Truncation(FittedSelection):
    """Truncation to the first k columns, then L2 normalization, as `dimensions` does for Matryoshka encoders.

    Args:
        dimensions: k.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import Truncation
        >>> rows = np.array([[3, 4, 12]], np.float32)
        >>> Truncation(2).fit(rows).transform(rows)
        array([[0.6, 0.8]], dtype=float32)
    """

    kind = "truncation"
    parameter_rules = {"dimensions": whole_number(1)}
    nested = True

    def __init__(self, dimensions: int) -> None:
        super().__init__(dimensions)

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Store the column positions 0 to k − 1.

        Of the data, only the number of dimensions is used.
        """
        self.columns, self.width = torch.arange(self.dimensions), torch.tensor(dimensions_of(data))

    def check_tensors(self) -> None:
        """Check that the loaded columns are the first ones, 0 to `dimensions` − 1.

        Raises:
            ArtifactError: if they are not.
        """
        super().check_tensors()
        if self.columns.tolist() != list(range(self.dimensions)):
            raise ArtifactError(f"the tensor 'columns' of {self.kind} must hold 0 to {self.dimensions - 1}")

    def forward(self, x: Tensor) -> Tensor:
        """Return the first k columns of rows, L2-normalized, `(n, d)` to `(n, k)`.

        The columns are sliced, which does not copy them, unlike the indexing in `Selection.forward`.
        """
        return unit_rows(x[..., : self.dimensions])

    def primitives(self) -> list[Map]:
        """Return the `Selection` of the first k columns, followed by `Normalize`."""
        return [Selection(self.dimensions, self.columns, int(self.width)), Normalize()]
