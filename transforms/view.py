"""Rows as they are after some transforms, computed when they are asked for."""

from typing import Any

from transforms.arrays import Vectors
from transforms.outline import Outline
from transforms.transform import Transform


class View:
    """Vectors `(n, d)` behind fitted steps: what the next step is fitted on, never all at once."""

    def __init__(self, vectors: Vectors, steps: list[Transform]) -> None:
        self.vectors = vectors
        self.steps = steps
        outline = Outline(vectors.shape[1])
        for step in steps:
            outline = step.follow(outline)
        assert outline.width is not None  # every step is fitted
        self.shape = (vectors.shape[0], outline.width)

    def __getitem__(self, rows: Any, /) -> Any:
        """The chosen rows, transformed."""
        block = self.vectors[rows]
        for step in self.steps:
            block = step.transform(block)
        return block
