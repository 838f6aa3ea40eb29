"""Candidates that a place can hold: each a form to search and what stands beside it, with their bytes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from lathe.training.advice.places.forms import StoredForm
from lathe.training.advice.request import Metric, PlaceName

REDUCTIONS = (2 / 3, 1 / 2, 1 / 3, 1 / 4, 1 / 6)
"""Shares of the dimensions that a reduction keeps."""
MULTIPLE = 8
"""Divisor of every reduced number of dimensions."""
LINKS = 16
"""Links of a graph per vector, the default of all places. There are twice as many on the lowest level."""

Counted = Literal["total", "memory"]
"""Which bytes are compared: all, or those that should be in memory."""


@dataclass(frozen=True)
class Candidate:
    """One way to store vectors in a place.

    Attributes:
        form: form that is searched.
        beside: form in which the full vectors are kept, to rank candidates by them; None without them.
        words: the form in the place's own words, such as "halfvec(96)".
        beside_words: the full vectors in the place's own words; empty without them.
        setting: what the place's template in `snippets` sets to get this form.
        metrics: ways to compare vectors for which the place has it.
    """

    form: StoredForm
    beside: StoredForm | None
    words: str
    beside_words: str = ""
    setting: str = ""
    metrics: tuple[Metric, ...] = get_args(Metric)


@dataclass(frozen=True)
class PlaceCost:
    """Bytes that vectors take in a place.

    Attributes:
        data: bytes of the vectors that are searched.
        graph: bytes of their graph or lists.
        beside: bytes of the full vectors, which are read for the candidates alone.
    """

    data: int
    graph: int
    beside: int

    def count(self, counted: Counted) -> int:
        """Return the bytes by which candidates are compared.
        For "total" these are all, for "memory" those of the searched vectors and their graph.
        """
        return self.data + self.graph + (self.beside if counted == "total" else 0)


@dataclass(frozen=True)
class Place:
    """Place that stores and searches vectors.

    Attributes:
        name: name that users give.
        title: name in sentences.
        counted: which bytes are compared.
        list_candidates: returns the candidates for a number of dimensions; the first stores the vectors as they are.
        measure: returns the bytes of a candidate for a number of rows.
    """

    name: PlaceName
    title: str
    counted: Counted
    list_candidates: Callable[[int], Iterator[Candidate]]
    measure: Callable[[Candidate, int], PlaceCost]


def list_reductions(dimensions: int) -> Iterator[tuple[int, str]]:
    """Yield the reduced numbers of dimensions to try, largest first, each with the steps of its PCA."""
    for share in REDUCTIONS:
        size = round(dimensions * share / MULTIPLE) * MULTIPLE
        if 0 < size < dimensions:
            yield size, f"pca:{size},center=none"


def count_link_bytes(links: int = LINKS) -> int:
    """Return the average bytes of a vector's links in an HNSW graph in memory, over all levels, at 4 bytes a link."""
    return 4 * (2 * links + 1) + 4 * links // (links - 1)
