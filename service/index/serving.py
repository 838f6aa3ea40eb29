"""Generation of an embedded index that one search uses from beginning to end."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from service.index.filters import Filter
from service.index.generation import Generation
from service.index.protocol import Hit
from service.index.reducer import Vectors
from service.index.spec import IndexSpec

if TYPE_CHECKING:
    from service.index.index import Index


@dataclass(frozen=True)
class GenerationServing:
    """One generation of an index, to be searched.

    Attributes:
        index: the index.
        generation: the generation.
    """

    index: "Index"
    generation: Generation

    @property
    def spec(self) -> IndexSpec:
        """Settings of the generation."""
        return self.generation.spec

    def search(
        self,
        queries: Vectors,
        k: int,
        ef: int | None = None,
        rescoring: float | None = None,
        wanted: Filter | None = None,
        reduced: bool = False,
    ) -> list[list[Hit]]:
        """Return the k nearest items to each query, best first; see `Index.search`."""
        return self.index.search(self.generation, queries, k, ef, rescoring, wanted, reduced)
