"""Places that store vectors: the forms that a place can hold, their bytes, and commands to create, fill and search it.

The forms are listed in `places.toml`. Commands are lines to paste into a terminal. A place has a template of its
commands in `snippets`: shell and Python, for pgvector shell and SQL.
"""

import math
import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import Any, Literal, get_args

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lathe.training.deciding.places.forms import Element, StoredForm
from lathe.training.deciding.places.recall import K
from lathe.training.deciding.requests import AdviceRequest, PlaceName
from lathe.training.settings import Metric

REDUCTIONS = (2 / 3, 1 / 2, 1 / 3, 1 / 4, 1 / 6)
"""Shares of the dimensions that a reduction keeps."""
MULTIPLE = 8
"""Divisor of every reduced number of dimensions."""
CODE_BYTES = (24, 32, 48, 64, 96, 128)
"""Numbers of bytes of Lathe's byte codes that are tried."""
LINKS = 16
"""Links of a vector in an HNSW graph (M), the default of all places. The lowest level has twice as many."""
GRAPH_LINK_BYTES = 4 * (2 * LINKS + 1) + 4 * LINKS // (LINKS - 1)
"""Average bytes of a vector's links in an HNSW graph in memory, over all levels, at 4 bytes a link."""
PAGE = 8192 - 24 - 8
"""Bytes of a page of PostgreSQL for the tuples of an HNSW index, without the page header and pgvector's opaque data."""
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "snippets"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
"""Templates of the commands. A template is compiled once, and rendered for every form that is tried."""

Structure = Literal["graph", "lists", "none"]
"""What a place builds over the vectors that are searched: a graph, the lists of an inverted file, or nothing."""
STRUCTURE_BYTES: dict[Structure, int] = {"graph": GRAPH_LINK_BYTES, "lists": 8, "none": 0}
"""Bytes per vector: links in a graph, or the id in a list of an inverted file."""
Cost = dict[Literal["data", "graph", "beside"], int]
"""Bytes of the searched vectors (`data`), of their graph or lists (`graph`), and of the full vectors (`beside`), which
are only read for the candidates of a search."""


@dataclass(frozen=True)
class Candidate:
    """One way to store vectors in a place.

    Attributes:
        form: form that is searched.
        beside: form in which the full vectors are stored, to rescore candidates; None if they are not stored.
        words: name of the form in the place, such as "halfvec(96)".
        beside_words: name of the full vectors' form in the place; empty if they are not stored.
        setting: value that the place's template in `snippets` sets to get this form.
        metrics: metrics for which the place has this form.
        added: bytes that the place adds to each searched vector, such as a factor.
        structure: what is searched: a graph, the lists of an inverted file, or all vectors.
    """

    form: StoredForm
    beside: StoredForm | None
    words: str
    beside_words: str = ""
    setting: str = ""
    metrics: Sequence[Metric] = get_args(Metric)
    added: int = 0
    structure: Structure = "graph"


@dataclass(frozen=True)
class Place:
    """Place that stores and searches vectors, a table of `places.toml`.

    Attributes:
        name: name that users give.
        title: name in sentences.
        undo: how to roll back, as a clause.
        counted: which bytes are compared: all (`total`), or only those that should be in memory (`memory`).
        forms: forms that the place can hold, as entries of `places.toml`.
        computed: whether the forms are computed by their documentation, and were never run in the place itself.
        in_index: whether the full vectors that rescore candidates are in the index, which is in memory.
    """

    name: PlaceName
    title: str
    undo: str
    counted: Literal["total", "memory"]
    forms: Sequence[dict[str, Any]]
    computed: bool = False
    in_index: bool = False

    def list_candidates(self, dimensions: int) -> Iterator[Candidate]:
        """Yield the candidates for vectors of this number of dimensions. The first stores the vectors as they are."""
        for entry in self.forms:
            least, most = entry.get("dimensions", (1, math.inf))
            for form in _list_forms(dimensions, **entry["form"]):
                if least <= form.dimensions <= most:
                    others = {key: value for key, value in entry.items() if key not in ("form", "dimensions")}
                    yield _build_candidate(form, dimensions, **others)

    def measure(self, candidate: Candidate, rows: int) -> Cost:
        """Compute the bytes of `rows` vectors stored in the place as a candidate says."""
        if self.name in ("pgvector", "vectorchord"):
            return _measure_postgres(self.name, candidate, rows)
        data = (candidate.form.bytes + candidate.added) * rows
        beside = candidate.beside.bytes * rows if candidate.beside else 0
        if self.in_index and not candidate.form.steps:
            data, beside = data + beside, 0
        return {"data": data, "graph": STRUCTURE_BYTES[candidate.structure] * rows, "beside": beside}

    def count(self, cost: Cost) -> int:
        """Sum the bytes by which candidates are compared: all, or without the full vectors if `counted` is `memory`."""
        return cost["data"] + cost["graph"] + (cost["beside"] if self.counted == "total" else 0)


_TABLES = tomllib.loads(Path(__file__).with_name("places.toml").read_text())
PLACES: dict[PlaceName, Place] = {name: Place(name, **_TABLES[name]) for name in get_args(PlaceName)}
"""Places by the name that users give."""


def _list_forms(
    dimensions: int, element: Element, steps: str = "", part: int = 0, **fields: Any
) -> Iterator[StoredForm]:
    form = StoredForm(element, dimensions, **fields)
    if steps:
        for size in (round(dimensions * share / MULTIPLE) * MULTIPLE for share in REDUCTIONS):
            if 0 < size < dimensions:
                yield replace(form, dimensions=size, steps=Template(steps).substitute(size=size))
    elif element == "codes":
        yield from (replace(form, code_bytes=size) for size in CODE_BYTES if size <= dimensions)
    elif element != "pq":
        yield form
    elif dimensions % part == 0:
        yield replace(form, code_bytes=dimensions // part)


def _build_candidate(
    form: StoredForm,
    dimensions: int,
    words: str,
    setting: str = "",
    beside: tuple[Element, str] | None = None,
    copy: Element | None = None,
    **fields: Any,
) -> Candidate:
    """Build the candidate of a form from an entry of `places.toml`, with the entry's placeholders filled in.

    Args:
        form: form that is searched.
        dimensions: dimensions of the full vectors.
        words: template of the form's name.
        setting: template of the setting.
        beside: element of the full vectors and the template of its name; None if the full vectors are not stored.
        copy: element of another copy of the vectors that the place stores; None without a copy.
        **fields: other attributes of the candidate.
    """
    element, beside_words = beside or (None, "")
    words, setting, beside_words = (
        Template(text).substitute(d=dimensions, size=form.dimensions, code_bytes=form.code_bytes)
        for text in (words, setting, beside_words)
    )
    full = StoredForm(element, dimensions) if element else None
    if copy:
        fields["added"] = StoredForm(copy, dimensions).bytes
    return Candidate(form, full, words, beside_words, setting, **fields)


def _measure_postgres(place: PlaceName, candidate: Candidate, rows: int) -> Cost:
    """Compute the bytes in PostgreSQL of the searched column, of the index, and of the column of full vectors.

    pgvector's index lays out its tuples in pages of 8 kB. The element tuple has 72 bytes in addition to the vector, the
    neighbour tuple 4 bytes, and 6 bytes for each of 2m links. Every tuple has a line pointer of 4 bytes (pgvector's
    src/hnsw.h; the pages agree with measured indexes). VectorChord's index has a further code of one bit per dimension.
    """
    stored = candidate.form.bytes + candidate.added + 8
    beside = (candidate.beside.bytes + 8) * rows if candidate.beside else 0
    if place == "vectorchord":
        index = (stored + math.ceil(candidate.form.dimensions / 8) + 16) * rows
        return {"data": stored * rows, "graph": index, "beside": beside}
    if candidate.structure == "none":
        return {"data": stored * rows, "graph": 0, "beside": 0}

    # PostgreSQL aligns tuples to 8 bytes, and adds a line pointer of 4 bytes.
    tuples = (72 + stored, 4 + 6 * 2 * LINKS)
    entry = sum(math.ceil(size / 8) * 8 + 4 for size in tuples)
    pages = math.ceil(rows / (PAGE // entry)) if entry <= PAGE else rows * 2
    # An index over an expression has no column of its own.
    column = 0 if candidate.beside and not candidate.form.chain_steps else stored * rows
    return {"data": column, "graph": 8192 * pages, "beside": beside}


def write_commands(
    request: AdviceRequest, candidate: Candidate, multiple: int, dimensions: int, texts: bool = False
) -> tuple[str, ...]:
    """Render the commands that create, fill and search the place of a request, with vectors stored as a candidate says.

    If the candidate needs a chain and the request does not fit it (`fit`), the commands fit the chain first.

    Args:
        request: place, metric, source, encoder and name of the chain.
        candidate: form to search, and form of the full vectors.
        multiple: number of candidates of a search that the full vectors rescore, as a multiple of ten; 1 rescores none.
        dimensions: dimensions of the full vectors.
        texts: whether the source holds texts.

    Returns:
        The lines of the commands.
    """
    place, source, form = request.place, request.source.location, candidate.form
    values = {
        "place": place,
        "form": form,
        "setting": candidate.setting,
        "lists": candidate.structure == "lists",
        "chain": bool(form.chain_steps),
        "rotated": bool(form.rotation),
        # Such as pca192 or codes96: another decision must not search through this one's chain.
        "name": request.fit or re.sub(r",center=none|\W", "", form.chain_steps),
        "fitted": request.fit is not None,
        "multiple": multiple,
        "count": K * multiple,
        "d": dimensions,
        "metric": request.metric,
        "texts": texts,
        "source": shlex.quote(source),
        "encoder": f" --encoder {shlex.quote(request.encoder)}" if request.encoder else "",
        # A source of vectors in another form than .npy has to be written as one first.
        "vectors": source if source.endswith(".npy") and not texts else "vectors.npy",
    }
    templates = [f"{place}.j2"] if place in ("pgvector", "vectorchord") else ["prepare.j2", f"{place}.j2"]
    return tuple(line for name in templates for line in TEMPLATES.get_template(name).render(values).splitlines())
