"""The places: what each can hold, what it takes, and how to set it up."""

import math
from collections.abc import Iterator

from lathe.training.advice.places.forms import Element, StoredForm
from lathe.training.advice.places.place import LINKS, Candidate, Place, PlaceCost, count_link_bytes, list_reductions

PAGE = 8192 - 24 - 8
"""Bytes of a page of PostgreSQL for the tuples of an HNSW index: without its header and pgvector's opaque data."""
CODE_BYTES = (24, 32, 48, 64, 96, 128)
"""Bytes of the codes of Lathe that are tried."""


def _fit(steps: str) -> str:
    return f"lathe fit --name small --steps {steps} --source SAMPLE.npy"


# pgvector: a column of a table and an index, which holds the vectors once more. The column of full vectors stays: it is
# the way back, and changing its type would rewrite the table under a lock, and fail where it has an index.


def _list_pgvector(dimensions: int) -> Iterator[Candidate]:
    """Yield what pgvector can search of vectors of so many dimensions, the full vectors first."""
    full, column = StoredForm("float32", dimensions), f"vector({dimensions})"
    yield Candidate(full, None, column)
    for form, cast, operators in (
        (StoredForm("float16", dimensions), f"embedding::halfvec({dimensions})", "halfvec_cosine_ops"),
        (StoredForm("bit", dimensions), f"binary_quantize(embedding)::bit({dimensions})", "bit_hamming_ops"),
    ):
        index = f"CREATE INDEX CONCURRENTLY ON items USING hnsw (({cast}) {operators});"
        words = f"an index of {cast.partition('::')[2]}"
        yield Candidate(form, full, words, column, (index, _describe_pgvector_search(cast, form), DROP_FULL_INDEX))

    for size, steps in list_reductions(dimensions):
        form = StoredForm("float16", size, steps)
        commands = (
            "lathe pgvector sample --table items --column embedding --out SAMPLE.npy",
            _fit(steps),
            "lathe pgvector reduce --table items --column embedding --chain small --column-type halfvec --into small",
            "VACUUM FULL items;  -- frees what the rewritten rows took; it locks the table",
            "CREATE INDEX CONCURRENTLY ON items USING hnsw (small halfvec_cosine_ops);",
            _describe_pgvector_search("small", form),
            DROP_FULL_INDEX,
        )
        yield Candidate(form, full, f"halfvec({size})", column, commands, one_line=False)


DROP_FULL_INDEX = (
    "-- once you are sure to stay, drop the index over embedding, which no search uses any more: DROP INDEX …;"
)
"""Line of the commands for pgvector; until then that index takes its bytes besides."""
PGVECTOR_EF = 200
"""Candidates of a search of pgvector's graph: with its default of 40 it would return no more to be ranked."""


def _describe_pgvector_search(searched: str, form: StoredForm) -> str:
    """Return a line that says how the index over an expression is searched."""
    operator = "<~>" if form.element == "bit" else "<=>"
    return f"-- search: SET hnsw.ef_search = {PGVECTOR_EF}; SELECT … ORDER BY {searched} {operator} … LIMIT …;"


def _measure_pgvector(candidate: Candidate, rows: int) -> PlaceCost:
    """Compute the bytes that a candidate takes in PostgreSQL for so many rows.
    They are those of the searched column, of the HNSW index, and of the full vectors beside it.

    The index lays out its tuples in pages of 8 kB.

    The element tuple has 72 bytes besides the vector, the neighbour tuple 4 and 6 for each of 2m + m links, each with a
    line pointer of 4 bytes (pgvector's src/hnsw.h; the pages agree with indexes that were measured).
    """
    stored = candidate.form.bytes + 8
    neighbours = 4 + 6 * 2 * LINKS
    # PostgreSQL aligns tuples to 8 bytes; each has a line pointer of 4.
    entry = _align(72 + stored) + 4 + _align(neighbours) + 4
    pages = math.ceil(rows / max(PAGE // entry, 1)) if entry <= PAGE else rows * 2
    # An index over an expression has no column of its own.
    column = 0 if candidate.beside is not None and not candidate.form.steps else stored * rows
    beside = 0 if candidate.beside is None else (candidate.beside.bytes + 8) * rows

    return PlaceCost(column, 8192 * pages, beside)


def _align(size: int) -> int:
    return -(-size // 8) * 8


# Places that keep the vectors that are searched in memory, and the full ones on the disk.


def _measure_graph(candidate: Candidate, rows: int) -> PlaceCost:
    beside = 0 if candidate.beside is None else candidate.beside.bytes * rows
    return PlaceCost(candidate.form.bytes * rows, count_link_bytes() * rows, beside)


def _measure_flat(candidate: Candidate, rows: int) -> PlaceCost:
    beside = 0 if candidate.beside is None else candidate.beside.bytes * rows
    return PlaceCost(candidate.form.bytes * rows, 0, beside)


def _list_reduced(
    dimensions: int, element: Element, beside: StoredForm, words: str, set_up: str
) -> Iterator[Candidate]:
    """Yield one candidate for each reduced number of dimensions, largest first.
    A chain reduces the vectors, and the place stores them in its own element type.

    Args:
        dimensions: dimensions of the full vectors.
        element: how the place stores a coordinate.
        beside: form of the full vectors, by which candidates are ranked.
        words: name of the form, with `{size}` for the dimensions.
        set_up: command that sets it up, with `{size}` for the dimensions.
    """
    for size, steps in list_reductions(dimensions):
        form = StoredForm(element, size, steps)
        name = words.format(size=size)
        yield Candidate(form, beside, name, "full vectors", (_fit(steps), set_up.format(size=size)), one_line=False)


def _list_qdrant(dimensions: int) -> Iterator[Candidate]:
    """Yield what Qdrant can store of vectors of so many dimensions, the full vectors first."""
    full = StoredForm("float32", dimensions)
    yield Candidate(full, None, "float32 in memory")
    yield Candidate(
        StoredForm("float16", dimensions), None, "float16 in memory", commands=('"vectors": {"datatype": "float16"}',)
    )
    on_disk = '"vectors": {"on_disk": true}, "quantization_config": '
    scalar = on_disk + '{"scalar": {"type": "int8", "always_ram": true}}'
    yield Candidate(StoredForm("int8", dimensions), full, "scalar quantization", "float32 on disk", (scalar,))
    binary = on_disk + '{"binary": {"always_ram": true}}'
    yield Candidate(StoredForm("bit", dimensions), full, "binary quantization", "float32 on disk", (binary,))

    if dimensions % 4 == 0:
        product = on_disk + '{"product": {"compression": "x16", "always_ram": true}}'
        form = StoredForm("pq", dimensions, code_bytes=dimensions // 4)
        yield Candidate(form, full, "product quantization x16", "float32 on disk", (product,))

    named = (
        'two named vectors: "small" with {{"size": {size}}} and scalar quantization in memory, "full" on disk without '
        "a graph (docs/how-to/use-qdrant.md)"
    )
    yield from _list_reduced(dimensions, "int8", full, "{size} dimensions in int8", named)


def _list_elasticsearch(dimensions: int) -> Iterator[Candidate]:
    """Yield what Elasticsearch can store of vectors of so many dimensions, the full vectors first."""
    full = StoredForm("float32", dimensions)
    options = '"index_options": {{"type": "{kind}"}}'
    yield Candidate(full, None, "hnsw of floats", commands=(options.format(kind="hnsw"),))
    int8 = (options.format(kind="int8_hnsw"),)
    yield Candidate(StoredForm("int8", dimensions), full, "int8_hnsw", "float32 on disk", int8)
    bbq = (options.format(kind="bbq_hnsw"),)
    yield Candidate(StoredForm("rabitq", dimensions), full, "bbq_hnsw", "float32 on disk", bbq)
    field = '"small": {{"type": "dense_vector", "dims": {size}, "index_options": {{"type": "int8_hnsw"}}}}'
    yield from _list_reduced(dimensions, "int8", full, "int8_hnsw of {size} dimensions", field)


def _list_milvus(dimensions: int) -> Iterator[Candidate]:
    """Yield what Milvus can store of vectors of so many dimensions, the full vectors first."""
    full, half = StoredForm("float32", dimensions), StoredForm("float16", dimensions)
    yield Candidate(full, None, "HNSW of floats", commands=('index_type="HNSW"',))
    yield Candidate(half, None, "HNSW_SQ with FP16", commands=('index_type="HNSW_SQ", params={"sq_type": "FP16"}',))
    refined = 'index_type="HNSW_SQ", params={"sq_type": "SQ8", "refine": True, "refine_type": "FP32"}'
    yield Candidate(StoredForm("sq8", dimensions), full, "HNSW_SQ with SQ8", "float32", (refined,))
    bits = 'index_type="IVF_RABITQ", params={"refine": True, "refine_type": "FP32"}'
    yield Candidate(StoredForm("rabitq", dimensions), full, "IVF_RABITQ", "float32", (bits,))
    field = 'a second field of {size} dimensions with index_type="HNSW_SQ" (docs/how-to/use-milvus.md)'
    yield from _list_reduced(dimensions, "sq8", full, "HNSW_SQ of {size} dimensions", field)


def _list_lancedb(dimensions: int) -> Iterator[Candidate]:
    """Yield what LanceDB can store of vectors of so many dimensions, the full vectors first."""
    full = StoredForm("float32", dimensions)
    yield Candidate(full, None, "vectors without an index")
    scalar = 'table.create_index("vector", config=HnswSq(distance_type="cosine")), search with refine_factor'
    yield Candidate(StoredForm("sq8", dimensions), full, "HnswSq", "the column", (scalar,))

    if dimensions % 16 == 0:
        product = f'config=IvfPq(distance_type="cosine", num_sub_vectors={dimensions // 16}), search with refine_factor'
        form = StoredForm("pq", dimensions, code_bytes=dimensions // 16)
        yield Candidate(form, full, "IvfPq", "the column", (product,))

    column = "a column of {size} dimensions with HnswSq (docs/how-to/use-lancedb.md)"
    yield from _list_reduced(dimensions, "sq8", full, "HnswSq of {size} dimensions", column)


def _list_faiss(dimensions: int) -> Iterator[Candidate]:
    """Yield what FAISS can store of vectors of so many dimensions, the full vectors first."""
    full, half = StoredForm("float32", dimensions), StoredForm("float16", dimensions)
    yield Candidate(full, None, "HNSW16,Flat")
    yield Candidate(half, None, "HNSW16,SQfp16", commands=('faiss.index_factory(d, "HNSW16,SQfp16")',))
    refined = 'faiss.index_factory(d, "HNSW16,{kind},Refine(SQfp16)")'
    sq8 = (refined.format(kind="SQ8"),)
    yield Candidate(StoredForm("sq8", dimensions), half, "HNSW16,SQ8", "float16", sq8)

    if dimensions % 8 == 0:
        pq = (refined.format(kind=f"PQ{dimensions // 8}np"),)
        form = StoredForm("pq", dimensions, code_bytes=dimensions // 8)
        yield Candidate(form, half, f"HNSW16,PQ{dimensions // 8}", "float16", pq)

    export = 'lathe export --chain small --format faiss --out small.faiss; then "HNSW16,SQ8" over {size} dimensions'
    yield from _list_reduced(dimensions, "sq8", half, "HNSW16,SQ8 of {size} dimensions", export)


def _list_codes(dimensions: int, beside: StoredForm | None, beside_words: str, store: str) -> Iterator[Candidate]:
    """Yield one candidate for each size of Lathe's codes in `CODE_BYTES`.
    Its commands fit the chain and store the codes.

    Args:
        dimensions: dimensions of the full vectors.
        beside: form of the full vectors, by which candidates are ranked; None without them.
        beside_words: the full vectors in the place's own words.
        store: command that stores the codes.
    """
    for size in CODE_BYTES:
        if size <= dimensions:
            form = StoredForm("codes", dimensions, code_bytes=size)
            commands = (f"lathe fit --name small --steps codes:{size} --source SOURCE", store)
            yield Candidate(form, beside, f"codes of {size} bytes", beside_words, commands, one_line=False)


def _list_lathe(dimensions: int) -> Iterator[Candidate]:
    full, half = StoredForm("float32", dimensions), StoredForm("float16", dimensions)
    yield Candidate(full, half, "float32", "float16 on disk", ("lathe index import --name items --source SOURCE",))
    yield from _list_codes(
        dimensions, half, "float16 on disk", "lathe index import --name items --source SOURCE --chain small"
    )


def _list_memory(dimensions: int) -> Iterator[Candidate]:
    """Yield what arrays in memory can store of vectors of so many dimensions, the full vectors first."""
    yield Candidate(StoredForm("float32", dimensions), None, "float32")
    half = ('np.load("vectors.npy").astype(np.float16)',)
    yield Candidate(StoredForm("float16", dimensions), None, "float16", commands=half)

    for size, steps in list_reductions(dimensions):
        reduce = (
            f"lathe fit --name small --steps {steps} --source SOURCE",
            "lathe reduce --source SOURCE --chain small --out small.npy",
        )
        form = StoredForm("float16", size, steps)
        yield Candidate(form, None, f"{size} dimensions in float16", commands=reduce, one_line=False)

    yield from _list_codes(dimensions, None, "", "lathe reduce --source SOURCE --chain small --out codes.npy")


PLACES = {
    place.name: place
    for place in (
        Place("lathe", "an index of Lathe", "memory", _list_lathe, _measure_graph),
        Place("pgvector", "pgvector", "total", _list_pgvector, _measure_pgvector),
        Place("qdrant", "Qdrant", "memory", _list_qdrant, _measure_graph),
        Place("elasticsearch", "Elasticsearch", "memory", _list_elasticsearch, _measure_graph),
        Place("milvus", "Milvus", "memory", _list_milvus, _measure_graph),
        Place("lancedb", "LanceDB", "memory", _list_lancedb, _measure_graph),
        Place("faiss", "FAISS", "memory", _list_faiss, _measure_graph),
        Place("memory", "arrays in memory", "memory", _list_memory, _measure_flat),
    )
}
"""Places by the name that users give."""
