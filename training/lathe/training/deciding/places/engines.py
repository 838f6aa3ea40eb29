"""Searches in the engines that run in this process: Qdrant, LanceDB and FAISS.

They verify what `forms` computes, in `lathe advise --verify` and in benchmarks/places.py.
"""

import os
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from lathe.training.deciding.places.databases import Candidate
from lathe.training.deciding.places.forms import FormSearch
from lathe.training.deciding.places.recall import K, find_nearest, measure_recall
from lathe.training.deciding.requests import PlaceName
from lathe.training.errors import AdviceError

EF = 400
"""Candidates of a search in a graph (ef): with this many, recall is close to an exact search."""
ENGINES: dict[PlaceName, tuple[str, str]] = {
    "qdrant": ("qdrant_edge", "qdrant-edge-py"),
    "lancedb": ("lancedb", "lancedb"),
    "faiss": ("faiss", "faiss-cpu"),
}
"""Module and package of the engine by place, for engines that run in this process."""
LISTS = 256
"""Number of lists of an inverted file that are searched (nprobe): all lists."""
BATCH_ROWS = 2000
"""Rows of one insertion into Qdrant."""


def find_engine(place: PlaceName) -> str | None:
    """Return package and version of a place's engine, such as "lancedb 0.40.0", or None if it is not installed."""
    module, package = ENGINES.get(place, ("", ""))
    if not module or find_spec(module) is None:
        return None
    return f"{package} {version(package)}"


def require_engine(place: PlaceName) -> None:
    """Raise `AdviceError` if the place has no engine that runs in this process, or the engine is not installed."""
    if place not in ENGINES:
        raise AdviceError(
            f"verify runs the engine of qdrant, lancedb or faiss in this process; leave it out for {place}"
        )
    if find_engine(place) is None:
        raise AdviceError(f"verify needs {ENGINES[place][1]}: pip install 'lathe-training[engines,faiss]'")


_Found = tuple[list[list[int]], int]


def search_in_engine(place: PlaceName, candidate: Candidate, multiple: int, search: FormSearch) -> tuple[float, int]:
    """Store rows in the engine of a place as a candidate says, search them, and return recall@10 and stored bytes.

    The engine stores the rows in a temporary folder. The bytes are those of the searched vectors with their graph or
    lists.

    Args:
        place: a place for which `find_engine` returns an engine.
        candidate: form to store.
        multiple: number of candidates that the full vectors rescore, as a multiple of ten; 1 rescores none.
        search: rows, queries and metric. The chain of the form is fitted on these rows.
    """
    form = candidate.form
    rows, queries = search.transform(form.steps or form.rotation)
    # Engines rescore with their own full vectors. Candidates of reduced vectors are rescored below, exactly.
    in_store, limit = (1, K * multiple) if form.steps else (multiple, K)
    run = {"qdrant": _search_qdrant, "lancedb": _search_lancedb, "faiss": _search_faiss}[place]
    with tempfile.TemporaryDirectory() as folder:
        found, size = run(Path(folder), candidate, FormSearch(rows, queries, search.metric), in_store, limit)

    # −1 stands for a missing result of a query that found fewer rows.
    positions = np.full((len(queries), limit), -1, np.int64)
    for position, ids in enumerate(found):
        positions[position, : len(ids)] = ids
    if limit > K:
        scores = np.where(positions >= 0, np.take_along_axis(search.exact, np.maximum(positions, 0), axis=1), -np.inf)
        positions = np.take_along_axis(positions, np.argsort(-scores, axis=1)[:, :K], axis=1)
    return measure_recall(positions, find_nearest(search.exact)), size


def _count_bytes(folder: Path, is_counted: Callable[[str], bool]) -> int:
    """Sum the bytes that files below a folder take on the disk, without the holes of preallocated files.

    Only files whose relative path `is_counted` accepts are counted.
    """
    paths = [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]
    return sum(path.stat().st_blocks * 512 for path in paths if is_counted(str(path.relative_to(folder))))


def _search_qdrant(folder: Path, candidate: Candidate, vectors: FormSearch, multiple: int, limit: int) -> _Found:
    import qdrant_edge as qdrant

    rows, element, setting = vectors.rows, candidate.form.element, candidate.setting.capitalize()
    quantization: Any = None
    if element == "range7":
        quantization = qdrant.ScalarQuantizationConfig(type=qdrant.ScalarType.Int8)
    elif element == "bit":
        quantization = qdrant.BinaryQuantizationConfig()
    elif element == "pq":
        quantization = qdrant.ProductQuantizationConfig(compression=qdrant.CompressionRatio.X16)
    elif element == "turbo_scaled":
        quantization = qdrant.TurboQuantQuantizationConfig(bits=getattr(qdrant.TurboQuantBitSize, setting))
    # Without a quantization, the setting is a data type, or empty.
    datatype = setting if quantization is None and setting else "Float32"
    parameters = qdrant.EdgeVectorParams(
        size=rows.shape[1],
        distance=getattr(qdrant.Distance, {"cosine": "Cosine", "ip": "Dot", "l2": "Euclid"}[vectors.metric]),
        datatype=getattr(qdrant.VectorStorageDatatype, datatype),
        quantization_config=quantization,
    )
    # One segment, and a graph from its first row on.
    optimizers = qdrant.EdgeOptimizersConfig(indexing_threshold=1, default_segment_number=1)
    shard = qdrant.EdgeShard.create(
        str(folder), qdrant.EdgeConfig(vectors=parameters, optimizers=optimizers, wal_enabled=False)
    )
    for start in range(0, len(rows), BATCH_ROWS):
        batch = rows[start : start + BATCH_ROWS].tolist()
        points = [qdrant.Point(start + n, row) for n, row in enumerate(batch)]
        shard.update(qdrant.UpdateOperation.upsert_points(points))
    shard.optimize()

    search_parameters = qdrant.SearchParams(
        hnsw_ef=EF,
        quantization=qdrant.QuantizationSearchParams(rescore=multiple > 1, oversampling=float(multiple)),
    )
    requests = [
        qdrant.SearchRequest(query=qdrant.Query.Nearest(query), limit=limit, params=search_parameters)
        for query in vectors.queries.tolist()
    ]
    found: Any = [[point.id for point in shard.search(request)] for request in requests]
    shard.close()
    searched = "quantized" if quantization is not None else "vector_storage"
    return found, _count_bytes(folder, lambda path: searched in path or "vector_index" in path)


def _search_lancedb(folder: Path, candidate: Candidate, vectors: FormSearch, multiple: int, limit: int) -> _Found:
    import lancedb
    import lancedb.index as indexes
    import pyarrow

    rows, form = vectors.rows, candidate.form
    distance: Any = {"cosine": "cosine", "ip": "dot", "l2": "l2"}[vectors.metric]
    column = pyarrow.FixedSizeListArray.from_arrays(np.ascontiguousarray(rows, np.float32).ravel(), rows.shape[1])
    data = pyarrow.table({"id": np.arange(len(rows)), "full": column})
    table = lancedb.connect(folder).create_table("items", data)
    if kind := candidate.setting:
        options: Any = {
            "HnswSq": {"num_partitions": 1},
            "IvfRq": {"num_bits": int(form.bits)},
            "IvfPq": {"num_sub_vectors": form.code_bytes},
        }[kind]
        table.create_index("full", config=getattr(indexes, kind)(distance_type=distance, **options))
    found = []
    for query in vectors.queries:
        search: Any = table.search(query, vector_column_name="full").distance_type(distance).limit(limit)
        search = search.nprobes(LISTS) if candidate.structure == "lists" else search.ef(EF)
        if multiple > 1:
            search = search.refine_factor(multiple)
        found.append(search.select(["id", "_distance"]).to_arrow()["id"].to_pylist())
    return found, _count_bytes(folder, lambda path: "_indices" in path)


def _search_faiss(folder: Path, candidate: Candidate, vectors: FormSearch, multiple: int, limit: int) -> _Found:
    import faiss

    # FAISS itself rescores the candidates, unless they were found by reduced vectors.
    refines = candidate.beside is not None and not candidate.form.steps
    metric = faiss.METRIC_INNER_PRODUCT if vectors.metric == "ip" else faiss.METRIC_L2
    index: Any = faiss.index_factory(vectors.rows.shape[1], candidate.setting, metric)
    index.train(vectors.rows)
    index.add(vectors.rows)
    parameters: Any = faiss.ParameterSpace()
    parameter = ("nprobe", LISTS) if candidate.structure == "lists" else ("efSearch", EF)
    parameters.set_index_parameter(index, *parameter)
    if refines:
        parameters.set_index_parameter(index, "k_factor_rf", multiple)
    _, found = index.search(vectors.queries, limit)
    searched = faiss.downcast_index(index.base_index) if refines else index
    return found.tolist(), len(faiss.serialize_index(searched))
