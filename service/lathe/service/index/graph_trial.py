"""Trial of a graph over sampled vectors, as an index would build and search it, for the plan of an index in advice."""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lathe.service.chains.names import RAW
from lathe.service.errors import NotSupportedError
from lathe.service.index.embedded.exact import rescore
from lathe.service.index.embedded.graphs import create_graph, find_graph_problem
from lathe.service.index.embedded.graphs.graph import Graph
from lathe.service.index.embedded.vector_formats import choose_format
from lathe.service.index.reducer import Reducer, Vectors, read_artifact_files
from lathe.service.index.spec import IndexSpec
from lathe.training.advice.index_plan import Trial
from lathe.transforms import Chain

TIMED_QUERIES = 100
"""Number of queries that are timed, each alone."""
EFS = (20, 40, 80, 160, 320)
RESCORINGS = (1, 2, 4, 8, 16)
"""Values of ef, and numbers of candidates that the originals rank again, as multiples of k; 1 ranks none."""


def measure_graph(
    chain: Chain | None, m: int, base: Vectors, queries: Vectors, truth: NDArray[np.int64], k: int
) -> Trial:
    """Build a search graph over `base`, and measure recall and CPU time of its searches at several settings.

    The settings are the values of ef, and of rescoring (how many candidates are ranked again by original vectors).
    Building is measured too.

    Args:
        chain: chain of the index; None for vectors without one.
        m: number of links per node.
        base: vectors to index, `(n, d)`, of length 1.
        queries: other vectors `(q, d)`, of length 1.
        truth: the k rows nearest to each query, `(q, k)`.
        k: number of results of a search.

    Raises:
        NotSupportedError: if no engine of graphs is installed.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # CPU times are those of one core
    try:
        return _measure(chain, m, base, queries, truth, k)
    finally:
        torch.set_num_threads(threads)


def _measure(chain: Chain | None, m: int, base: Vectors, queries: Vectors, truth: NDArray[np.int64], k: int) -> Trial:
    """Build the graph, search it with the queries, and return sizes, build time, recalls and search times."""
    spec = _build_spec(chain, m, base.shape[1])
    reducer = Reducer(spec, None if chain is None else _serialize(chain))
    vector_format = choose_format(spec, reducer)
    graph = create_graph(spec, vector_format, 1)
    if graph is None:
        raise NotSupportedError(f"an index cannot be planned: {find_graph_problem(graph)}")
    rows, originals = vector_format.encode(base), reducer.convert_to_half(base)

    begun = time.process_time()
    graph.extend(rows, 1, len(rows))
    build_seconds = time.process_time() - begun

    rescorings = (1,) if chain is None else RESCORINGS
    searches = dict(_measure_searches(graph, reducer, queries, originals, truth, k, rescorings))
    disk = rows.itemsize * rows.shape[1] + originals.itemsize * originals.shape[1]
    return Trial(len(base), graph.bytes / len(base), disk, build_seconds, searches)


def _build_spec(chain: Chain | None, m: int, width: int) -> IndexSpec:
    """Return index settings for a trial: vectors of `width` dimensions, no encoder, metric cosine.

    Its names of spaces are used nowhere else.
    """
    return IndexSpec(
        encoder=None,
        encoder_fingerprint=None,
        width=width,
        raw_space_id="raw",
        chain=RAW if chain is None else "fitted",
        dimensions=width if chain is None else chain.dimensions_after(width),
        space_id="raw" if chain is None else "fitted",
        m=m,
        metric="cosine",
    )


def _serialize(chain: Chain) -> tuple[bytes, bytes]:
    """Return the contents of a chain's manifest and tensors files, by way of a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        chain.save(Path(folder, "chain"))
        return read_artifact_files(Path(folder, "chain"))


def _measure_searches(
    graph: Graph,
    reducer: Reducer,
    queries: Vectors,
    originals: NDArray[np.float16],
    truth: NDArray[np.int64],
    k: int,
    rescorings: Sequence[int],
) -> Iterator[tuple[tuple[int, int], tuple[float, float]]]:
    """Yield ((ef, rescoring), (recall, microseconds of a query)) where the graph finds enough rows.

    The microseconds are those of reducing the query, searching the graph and ranking the candidates by the originals.
    """
    reduced = reducer.reduce_queries(queries)
    singles = [slice(number, number + 1) for number in range(min(TIMED_QUERIES, len(queries)))]
    reducing = _measure_microseconds(partial(reducer.reduce_queries, queries[single]) for single in singles)
    ranking = {1: 0.0}  # by rescoring; it takes as long whatever the ef

    for ef in EFS:
        possible = [rescoring for rescoring in rescorings if rescoring * k <= ef]
        if not possible or (result := graph.search(reduced, max(possible) * k, ef)) is None:
            continue
        candidates = max(possible) * k
        searching = _measure_microseconds(partial(graph.search, reduced[single], candidates, ef) for single in singles)
        for rescoring in possible:
            rows = result[0][:, : rescoring * k]
            if rescoring not in ranking:
                ranking[rescoring] = _measure_microseconds(
                    partial(rescore, queries[single], originals, rows[single], k, "cosine") for single in singles
                )
            best = rows if rescoring == 1 else rescore(queries, originals, rows, k, "cosine")[0]
            recalls = [np.isin(nearest, retrieved).mean() for nearest, retrieved in zip(truth, best, strict=True)]
            recall = float(np.mean(recalls))
            yield (ef, rescoring), (recall, reducing + searching + ranking[rescoring])


def _measure_microseconds(calls: Iterable[Callable[[], object]]) -> float:
    """Run each call once, and return the median CPU time of a call in microseconds."""
    times = []
    for call in calls:
        begun = time.process_time()
        call()
        times.append(time.process_time() - begun)
    return float(np.median(times)) * 1e6
