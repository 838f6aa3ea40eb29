"""The places: what each can hold, how many bytes that takes, and the commands that create, fill and search it.

Commands are lines to paste into a terminal. Each place has a template in `snippets`, of shell and Python; that of
pgvector is shell and SQL.
"""

import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lathe.training.advice.places.forms import (
    GRAPH_LINK_BYTES,
    LINKS,
    Candidate,
    Element,
    Place,
    PlaceCost,
    StoredForm,
    Structure,
    list_reductions,
)
from lathe.training.advice.places.recall import K
from lathe.training.advice.request import AdviceRequest

PAGE = 8192 - 24 - 8
"""Bytes of a page of PostgreSQL for the tuples of an HNSW index: without its header and pgvector's opaque data."""
MAX_INDEXED = {"vector": 2000, "halfvec": 4000}
"""Dimensions up to which pgvector indexes a type."""
CODE_BYTES = (24, 32, 48, 64, 96, 128)
"""Bytes of the codes of Lathe that are tried."""
FOR_SIGNS, FOR_ONE_SCALE = "itq:aligned=true", "itq"
"""Steps of the rotations that are tried before a place's own quantizer: of signs, or of one scale for all coordinates.

They lose nothing of what is stored, and less is lost by the quantizer: research/conditioning.md. Quantizers that centre
or scale each coordinate themselves, such as RaBitQ, gain nothing by them.
"""
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "snippets"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
"""Templates of the lines; each is compiled once, and rendered for every form that is tried."""


# pgvector: a column of a table and an index, which holds the vectors once more. The column of full vectors stays: it is
# the way back, and changing its type would rewrite the table under a lock, and fail where it has an index.


def _list_pgvector(dimensions: int) -> Iterator[Candidate]:
    full, column = StoredForm("float32", dimensions), f"vector({dimensions})"
    if dimensions <= MAX_INDEXED["vector"]:
        yield Candidate(full, None, column)
    else:
        yield Candidate(full, None, f"{column} without an index", structure=Structure.NONE)
    if dimensions <= MAX_INDEXED["halfvec"]:
        yield Candidate(StoredForm("float16", dimensions), full, f"an index of halfvec({dimensions})", column)
    bits = StoredForm("bit", dimensions)
    yield Candidate(bits, full, f"an index of bit({dimensions})", column)
    rotated = replace(bits, rotation=FOR_SIGNS)
    yield Candidate(rotated, full, f"bit({dimensions}) of rotated vectors", column)
    for size, steps in list_reductions(dimensions):
        if size <= MAX_INDEXED["halfvec"]:
            yield Candidate(StoredForm("float16", size, steps), full, f"halfvec({size})", column)


def _measure_pgvector(candidate: Candidate, rows: int) -> PlaceCost:
    """Compute the bytes that a candidate takes in PostgreSQL for so many rows.

    They are the bytes of the searched column, of the HNSW index, and of the full vectors stored besides. The index lays
    out its tuples in pages of 8 kB. The element tuple has 72 bytes besides the vector, the neighbour tuple 4 and 6 for
    each of 2m + m links, each with a line pointer of 4 bytes (pgvector's src/hnsw.h; the pages agree with indexes that
    were measured).
    """
    stored = candidate.form.bytes + 8
    neighbours = 4 + 6 * 2 * LINKS
    # PostgreSQL aligns tuples to 8 bytes; each has a line pointer of 4.
    entry = _align(72 + stored) + 4 + _align(neighbours) + 4
    pages = math.ceil(rows / max(PAGE // entry, 1)) if entry <= PAGE else rows * 2
    if candidate.structure is Structure.NONE:
        return PlaceCost(stored * rows, 0, 0)
    # An index over an expression has no column of its own.
    column = 0 if candidate.beside is not None and not candidate.form.chain_steps else stored * rows
    beside = 0 if candidate.beside is None else (candidate.beside.bytes + 8) * rows

    return PlaceCost(column, 8192 * pages, beside)


def _list_vectorchord(dimensions: int) -> Iterator[Candidate]:
    full, column = StoredForm("float32", dimensions), f"vector({dimensions})"
    yield Candidate(full, None, column)
    yield Candidate(StoredForm("float16", dimensions), full, f"a column of halfvec({dimensions})", column, "halfvec")
    for bits in (8, 4):
        form, words = StoredForm("turbo_both", dimensions, bits=bits), f"a column of rabitq{bits}({dimensions})"
        yield Candidate(form, full, words, column, f"rabitq{bits}", added=8)


def _measure_vectorchord(candidate: Candidate, rows: int) -> PlaceCost:
    """Compute the bytes of a candidate in a column, and in an index with a further code of one bit per dimension."""
    stored = candidate.form.bytes + candidate.added + 8
    beside = 0 if candidate.beside is None else (candidate.beside.bytes + 8) * rows
    return PlaceCost(stored * rows, (stored + math.ceil(candidate.form.dimensions / 8) + 16) * rows, beside)


def _align(size: int) -> int:
    return -(-size // 8) * 8


# Places that keep the vectors that are searched in memory, and the full ones on the disk.


STRUCTURE_BYTES = {Structure.GRAPH: GRAPH_LINK_BYTES, Structure.LISTS: 8, Structure.NONE: 0}
"""Bytes for each vector of its links in a graph, or of its id in a list of an inverted file."""


def _measure_index(candidate: Candidate, rows: int) -> PlaceCost:
    beside = 0 if candidate.beside is None else candidate.beside.bytes * rows
    structure = STRUCTURE_BYTES[candidate.structure]
    return PlaceCost((candidate.form.bytes + candidate.added) * rows, structure * rows, beside)


def _measure_refined(candidate: Candidate, rows: int) -> PlaceCost:
    """Compute the bytes of a candidate where the vectors that rank others are in the index, which is in memory."""
    in_index = 0 if candidate.beside is None or candidate.form.steps else candidate.beside.bytes
    cost = _measure_index(candidate, rows)
    return PlaceCost(cost.data + in_index * rows, cost.graph, 0 if in_index else cost.beside)


def _list_reduced(
    dimensions: int, element: Element, beside: StoredForm, words: str, setting: str = ""
) -> Iterator[Candidate]:
    """Yield one candidate for each reduced number of dimensions, largest first.

    A chain of transforms reduces the vectors, and the place stores them in its own element type. Before one scale for
    all coordinates, the chain rotates them too, because principal axes differ in scale. `words` has `{size}` for the
    dimensions.
    """
    for size, steps in list_reductions(dimensions):
        steps = f"{steps},{FOR_ONE_SCALE}" if element in ("int8", "range7") else steps
        yield Candidate(StoredForm(element, size, steps), beside, words.format(size=size), "full vectors", setting)


def _list_qdrant(dimensions: int) -> Iterator[Candidate]:
    full, disk = StoredForm("float32", dimensions), "float32 on disk"
    yield Candidate(full, None, "float32 in memory")
    yield Candidate(StoredForm("float16", dimensions), None, "float16 in memory", setting="FLOAT16")
    for bits in (8, 4):
        form = StoredForm("turbo", dimensions, bits=bits)
        yield Candidate(form, None, f"turbo{bits} in memory", setting=f"TURBO{bits}", added=4)
    scalar, signs = StoredForm("range7", dimensions), StoredForm("bit", dimensions)
    yield Candidate(scalar, full, "scalar quantization", disk, "scalar", added=4)
    rotated = replace(scalar, rotation=FOR_ONE_SCALE)
    yield Candidate(rotated, full, "scalar quantization of rotated vectors", disk, "scalar", added=4)
    yield Candidate(signs, full, "binary quantization", disk, "binary")
    rotated = replace(signs, rotation=FOR_SIGNS)
    yield Candidate(rotated, full, "binary quantization of rotated vectors", disk, "binary")
    for each, name in ((4, "BITS4"), (2, "BITS2"), (1.5, "BITS1_5"), (1, "BITS1")):
        form, words = StoredForm("turbo_scaled", dimensions, bits=each), f"TurboQuant of {each:g} bit{'s' * (each > 1)}"
        yield Candidate(form, full, words, disk, name, added=8)
    if dimensions % 4 == 0:
        form = StoredForm("pq", dimensions, code_bytes=dimensions // 4)
        yield Candidate(form, full, "product quantization x16", disk, "product")
    yield from _list_reduced(dimensions, "range7", full, "{size} dimensions in int8", "scalar")


def _list_elasticsearch(dimensions: int) -> Iterator[Candidate]:
    full, disk = StoredForm("float32", dimensions), "float32 on disk"
    yield Candidate(full, None, "hnsw of floats", setting="hnsw")
    elements: tuple[Element, ...] = ("int8", "int4")
    for element in elements:
        form, words = StoredForm(element, dimensions), f"{element}_hnsw"
        yield Candidate(form, full, words, disk, words, added=4)
        yield Candidate(
            replace(form, rotation=FOR_ONE_SCALE), full, f"{words} of rotated vectors", disk, words, added=4
        )
    yield Candidate(StoredForm("rabitq", dimensions), full, "bbq_hnsw", disk, "bbq_hnsw", added=14)
    yield from _list_reduced(dimensions, "int8", full, "int8_hnsw of {size} dimensions")


def _list_opensearch(dimensions: int) -> Iterator[Candidate]:
    full, half = StoredForm("float32", dimensions), StoredForm("float16", dimensions)
    yield Candidate(full, None, "floats in memory", setting='"mode": "in_memory"')
    yield Candidate(half, None, "a compression of 2x", setting='"compression_level": "2x"')
    signs, setting = StoredForm("bit_centred", dimensions), '"mode": "on_disk", "compression_level": "32x"'
    yield Candidate(signs, full, "a compression of 32x", "float32 on disk", setting)


def _list_weaviate(dimensions: int) -> Iterator[Candidate]:
    full, disk = StoredForm("float32", dimensions), "float32 on disk"
    yield Candidate(full, None, "floats in memory", setting="none()")
    for bits in (8, 1):
        form = StoredForm("turbo", dimensions, bits=bits)
        yield Candidate(
            form, full, f"rotational quantization of {bits} bit{'s' * (bits > 1)}", disk, f"rq(bits={bits})", added=16
        )
    scalar, signs = StoredForm("range8", dimensions), StoredForm("bit", dimensions)
    yield Candidate(scalar, full, "scalar quantization", disk, "sq()")
    yield Candidate(signs, full, "binary quantization", disk, "bq()")
    yield Candidate(replace(signs, rotation=FOR_SIGNS), full, "binary quantization of rotated vectors", disk, "bq()")


def _list_redis(dimensions: int) -> Iterator[Candidate]:
    """Yield what Redis can index of vectors of so many dimensions, the full vectors first.

    Redis also holds the vectors in its hashes, in memory as well, in the type of the index.
    """
    full, half = StoredForm("float32", dimensions), StoredForm("float16", dimensions)
    yield Candidate(full, None, "HNSW of FLOAT32", setting="HNSW FLOAT32", added=full.bytes)
    yield Candidate(half, None, "HNSW of FLOAT16", setting="HNSW FLOAT16", added=half.bytes)
    scalar, setting = StoredForm("range8", dimensions), "SVS-VAMANA FLOAT16"
    yield Candidate(scalar, None, "SVS-VAMANA of 8 bits beside FLOAT16", setting=setting, added=half.bytes)
    rotated = replace(scalar, rotation=FOR_ONE_SCALE)
    words = "SVS-VAMANA of 8 bits, of rotated vectors beside FLOAT16"
    yield Candidate(rotated, None, words, setting=setting, added=half.bytes)


def _list_milvus(dimensions: int) -> Iterator[Candidate]:
    full, half = StoredForm("float32", dimensions), StoredForm("float16", dimensions)
    graph = '{"M": 16, "efConstruction": 200'
    yield Candidate(full, None, "HNSW of floats", setting=f'index_type="HNSW", params={graph}}}')
    fp16 = f'index_type="HNSW_SQ", params={graph}, "sq_type": "FP16"}}'
    yield Candidate(half, None, "HNSW_SQ with FP16", setting=fp16)
    sq8, bits = StoredForm("sq8", dimensions), StoredForm("rabitq", dimensions, lists=1024)
    scalar = f'index_type="HNSW_SQ", params={graph}, "sq_type": "SQ8"'
    yield Candidate(sq8, None, "HNSW_SQ with SQ8", setting=f"{scalar}}}")
    yield Candidate(sq8, half, "HNSW_SQ with SQ8", "FP16", f'{scalar}, "refine": True, "refine_type": "FP16"}}')
    ivf = 'index_type="IVF_RABITQ", params={"nlist": 1024, "refine": True, "refine_type": "SQ8"}'
    yield Candidate(bits, sq8, "IVF_RABITQ", "SQ8", ivf, structure=Structure.LISTS)
    yield from _list_reduced(dimensions, "sq8", full, "HNSW_SQ of {size} dimensions")


def _list_lancedb(dimensions: int) -> Iterator[Candidate]:
    full = StoredForm("float32", dimensions)
    yield Candidate(full, None, "vectors without an index", structure=Structure.NONE)
    yield Candidate(StoredForm("sq8", dimensions), full, "HnswSq", "the column", "HnswSq")
    for bits in (4, 1):  # by inner product, one bit found two thirds of what it finds by the others
        form, words = StoredForm("rabitq", dimensions, bits=bits), f"IvfRq of {bits} bit{'s' * (bits > 1)}"
        yield Candidate(form, full, words, "the column", "IvfRq", ("cosine", "l2"), 8, Structure.LISTS)
    if dimensions % 16 == 0:
        form = StoredForm("pq", dimensions, code_bytes=dimensions // 16)
        yield Candidate(form, full, "IvfPq", "the column", "IvfPq", structure=Structure.LISTS)
    yield from _list_reduced(dimensions, "sq8", full, "HnswSq of {size} dimensions", "HnswSq")


def _list_faiss(dimensions: int) -> Iterator[Candidate]:
    full, half = StoredForm("float32", dimensions), StoredForm("float16", dimensions)
    yield Candidate(full, None, "HNSW16,Flat", setting="HNSW16,Flat")
    yield Candidate(half, None, "HNSW16,SQfp16", setting="HNSW16,SQfp16")
    sq8 = StoredForm("sq8", dimensions)
    yield Candidate(sq8, None, "HNSW16,SQ8", setting="HNSW16,SQ8")
    yield Candidate(sq8, half, "HNSW16,SQ8", "float16", "HNSW16,SQ8,Refine(SQfp16)")
    for bits in (4, 1):  # compares by Euclidean distances alone
        form = StoredForm("rabitq", dimensions, bits=bits, lists=256)
        words = f"IVF256,RaBitQ{bits if bits > 1 else ''}"
        setting = f"RR{dimensions},{words},Refine(SQfp16)"
        added = 8 if bits == 1 else 20
        yield Candidate(form, half, words, "float16", setting, ("cosine", "l2"), added, Structure.LISTS)
    if dimensions % 8 == 0:
        form, pq = StoredForm("pq", dimensions, code_bytes=dimensions // 8), f"HNSW16,PQ{dimensions // 8}"
        # Its graph over product codes compares by Euclidean distances, whatever metric it is given.
        yield Candidate(form, None, pq, setting=pq, metrics=("cosine", "l2"))
        yield Candidate(form, half, pq, "float16", f"{pq},Refine(SQfp16)", ("cosine", "l2"))
    yield from _list_reduced(dimensions, "sq8", half, "HNSW16,SQ8 of {size} dimensions", "HNSW16,SQ8")


def _list_codes(dimensions: int, beside: StoredForm | None, beside_words: str) -> Iterator[Candidate]:
    for size in CODE_BYTES:
        if size <= dimensions:
            form = StoredForm("codes", dimensions, code_bytes=size)
            yield Candidate(form, beside, f"codes of {size} bytes", beside_words)


def _list_lathe(dimensions: int) -> Iterator[Candidate]:
    full, half = StoredForm("float32", dimensions), StoredForm("float16", dimensions)
    yield Candidate(full, half, "float32", "float16 on disk")
    yield from _list_codes(dimensions, half, "float16 on disk")


def _list_memory(dimensions: int) -> Iterator[Candidate]:
    flat = Structure.NONE
    yield Candidate(StoredForm("float32", dimensions), None, "float32", structure=flat)
    yield Candidate(StoredForm("float16", dimensions), None, "float16", structure=flat)
    for size, steps in list_reductions(dimensions):
        yield Candidate(StoredForm("float16", size, steps), None, f"{size} dimensions in float16", structure=flat)
    yield from (replace(candidate, structure=flat) for candidate in _list_codes(dimensions, None, ""))


PLACES = {
    place.name: place
    for place in (
        Place("lathe", "an index of Lathe", "memory", _list_lathe, _measure_index),
        Place("pgvector", "pgvector", "total", _list_pgvector, _measure_pgvector),
        Place("vectorchord", "VectorChord", "total", _list_vectorchord, _measure_vectorchord, computed=True),
        Place("qdrant", "Qdrant", "memory", _list_qdrant, _measure_index),
        Place("elasticsearch", "Elasticsearch", "memory", _list_elasticsearch, _measure_index, computed=True),
        Place("opensearch", "OpenSearch", "memory", _list_opensearch, _measure_index, computed=True),
        Place("milvus", "Milvus", "memory", _list_milvus, _measure_refined, computed=True),
        Place("lancedb", "LanceDB", "memory", _list_lancedb, _measure_index),
        Place("weaviate", "Weaviate", "memory", _list_weaviate, _measure_index, computed=True),
        Place("redis", "Redis", "memory", _list_redis, _measure_index, computed=True),
        Place("faiss", "FAISS", "memory", _list_faiss, _measure_refined),
        Place("memory", "arrays in memory", "memory", _list_memory, _measure_index),
    )
}
"""Places by the name that users give."""


def write_commands(
    request: AdviceRequest, candidate: Candidate, multiple: int, dimensions: int, texts: bool = False
) -> tuple[str, ...]:
    """Write the lines that set up the place of a request with a candidate.

    Args:
        request: place, metric and source. If the caller fits the chain by the name `fit`, the lines do not fit one.
        candidate: form to search, and what is stored besides.
        multiple: number of candidates of a search that the full vectors rank, as a multiple of ten; 1 ranks none.
        dimensions: dimensions of the full vectors.
        texts: whether the source holds texts.
    """
    place, source = request.place, request.source.location
    values = {
        "place": place,
        "form": candidate.form,
        "setting": candidate.setting,
        "lists": candidate.structure is Structure.LISTS,
        "chain": bool(candidate.form.chain_steps),
        "rotated": bool(candidate.form.rotation),
        # Such as pca192 or codes96: another decision must not search through this one's chain.
        "name": request.fit or re.sub(r",center=none|\W", "", candidate.form.chain_steps),
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
