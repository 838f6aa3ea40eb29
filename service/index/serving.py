"""One generation of an embedded index, held by a search from its beginning to its end."""

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
    """One generation of an index, to be searched."""

    index: "Index"
    generation: Generation

    @property
    def spec(self) -> IndexSpec:
        """The generation's."""
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
        """As `Index.search`."""
        return self.index.search(self.generation, queries, k, ef, rescoring, wanted, reduced)
