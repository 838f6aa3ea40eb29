"""Plan of an index: size, recall and time of each chain and graph, measured on a sample before an index is built."""

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lathe.service.chains.names import RAW
from lathe.service.errors import BadValueError, NotSupportedError
from lathe.service.index.embedded.exact import rescore, search_exactly
from lathe.service.index.embedded.graphs.choice import create_graph, find_graph_problem
from lathe.service.index.embedded.graphs.graph import Graph
from lathe.service.index.embedded.vector_formats import choose_format, score_floats
from lathe.service.index.protocol import Artifact
from lathe.service.index.reducer import Reducer, Vectors, normalize_rows, read_artifact_files
from lathe.service.index.spec import IndexSpec
from lathe.transforms import Chain, parse_steps
from lathe.transforms.progress import Progress

MIN_ROWS = 1000
"""Minimum number of sampled rows: with fewer, searches are exact, and there is nothing to plan."""
QUERIES = 500
"""Number of sampled rows that are not indexed, but search the others; at most a fifth of the sample."""
TIMED_QUERIES = 100
"""Number of queries that are timed, one by one."""
BUDGETS = (24, 32, 48, 64, 96)
"""Bytes of the codes that are fitted if no chains are named."""
LINKS = (8, 16)
"""Links per node that are tried."""
EFS = (20, 40, 80, 160, 320)
RESCORINGS = (1, 2, 4, 8, 16)
"""Values of ef, and numbers of candidates that the originals rank again, as multiples of k; 1 ranks none."""
MIN_LOSS = 1e-4
"""Smallest loss of recall that a sample can show; recall is clipped by it, because the logit of 1 is infinite."""


@dataclass(frozen=True)
class Candidate:
    """Chain to plan with.

    Attributes:
        chain: `none`, the name of a chain, or steps that were fitted on the sample, such as `codes:48`.
        spec: settings of an index with it.
        artifact: its files; None for `none`.
        fitted_bytes: bytes of the codes, if it was fitted on the sample.
    """

    chain: str
    spec: IndexSpec
    artifact: Artifact
    fitted_bytes: int | None = None


@dataclass(frozen=True)
class Setting:
    """Parameters to build and search an index, with its expected recall, time and size.

    Attributes:
        chain: as in `Candidate`.
        m: number of links per node.
        ef: effort of a search.
        rescore: candidates that the originals rank again, as a multiple of k; 1 ranks none.
        memory: bytes of the process for the graph.
        disk: bytes of the row files, which the page cache holds as far as there is room.
        recall: expected share of the true k nearest rows that a search finds.
        sampled_recall: share that it found on the sample.
        microseconds: expected CPU time of one query on one core, without HTTP.
        build_seconds: expected CPU time to build the graph.
        fitted_bytes: as in `Candidate`.
    """

    chain: str
    m: int
    ef: int
    rescore: int
    memory: int
    disk: int
    recall: float
    sampled_recall: float
    microseconds: float
    build_seconds: float
    fitted_bytes: int | None


@dataclass(frozen=True)
class Trial:
    """Measured size, build time and searches of a graph over sampled rows.

    Attributes:
        rows: number of rows in the graph.
        memory: bytes of the graph for each row.
        disk: bytes of the row files for each row.
        build_seconds: CPU time to build the graph.
        found: recall and microseconds for each query, by ef and rescoring.
    """

    rows: int
    memory: float
    disk: int
    build_seconds: float
    found: Mapping[tuple[int, int], tuple[float, float]]


def fit_candidates(vectors: Vectors) -> Iterator[Candidate]:
    """Yield a candidate without a chain, then `codes` of each budget up to a byte for each dimension, fitted here.

    Args:
        vectors: sampled vectors `(n, d)`, without those that search.
    """
    width = vectors.shape[1]
    build_spec = partial(_build_spec, width)
    yield Candidate(RAW, build_spec(RAW, width, "raw"), None)
    for budget in (budget for budget in BUDGETS if budget <= width):
        chain = Chain(parse_steps(f"codes:{budget}")).fit(vectors)
        with tempfile.TemporaryDirectory() as folder:
            chain.save(Path(folder, "1"))
            artifact = read_artifact_files(Path(folder, "1"))
        spec = build_spec(f"codes:{budget}", chain.dimensions_after(width), "fitted")
        yield Candidate(f"codes:{budget}", spec, artifact, budget)


def _build_spec(width: int, chain: str, dimensions: int, space_id: str) -> IndexSpec:
    """Return the settings of an index without an encoder; the names of its spaces are used nowhere else."""
    return IndexSpec(
        encoder=None,
        encoder_fingerprint=None,
        width=width,
        raw_space_id="raw",
        chain=chain,
        dimensions=dimensions,
        space_id=space_id,
    )


def split_queries(vectors: Vectors) -> tuple[Vectors, Vectors]:
    """Split distinct vectors `(n, d)` in random order into those to index and up to `QUERIES` that search them.

    Raises:
        BadValueError: if there are fewer than `MIN_ROWS`.
    """
    if len(vectors) < MIN_ROWS:
        raise BadValueError(
            f"a plan needs {MIN_ROWS:,} distinct rows, the source has {len(vectors):,}: searches of so few are exact"
        )
    held_out = min(QUERIES, len(vectors) // 5)
    return vectors[:-held_out], vectors[-held_out:]


def measure_settings(
    candidates: Sequence[Candidate], base: Vectors, queries: Vectors, rows: int, k: int, on_progress: Progress
) -> list[Setting]:
    """Build graphs over a sample and over a quarter of it, search them, and extrapolate to the number of rows.

    Similarity is the cosine. The logit of recall and the time of a query are taken as linear in the logarithm of the
    number of rows; neither improves with it.

    Args:
        candidates: chains.
        base: sampled vectors `(n, d)` in random order.
        queries: other vectors `(q, d)`.
        rows: number of rows of the planned index.
        k: number of results of a search.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        NotSupportedError: if no engine of graphs is installed.
    """
    base, queries = normalize_rows(base), normalize_rows(queries)
    sizes = (len(base) // 4, len(base))
    truths = [find_nearest(queries, base[:size], k) for size in sizes]
    found: list[Setting] = []
    tasks = [(candidate, m) for candidate in candidates for m in LINKS]
    for done, (candidate, m) in enumerate(tasks):
        on_progress(done / len(tasks), f"{candidate.chain}, {m} links per node")
        trials = [
            _run_trial(candidate, m, base[:size], queries, truth, k) for size, truth in zip(sizes, truths, strict=True)
        ]
        found += extrapolate(candidate, m, trials, max(rows, sizes[1]))
    on_progress(1.0, "measured")
    return found


def find_nearest(queries: Vectors, base: Vectors, k: int) -> NDArray[np.int64]:
    """Return the k rows of `base` nearest to each query by cosine, `(q, k)`; all vectors have length 1."""
    everywhere = slice(0, len(base))
    return search_exactly(
        queries, base, everywhere, None, k, lambda q, rows: score_floats(q, torch.from_numpy(rows), "cosine")
    )[0]


def _run_trial(
    candidate: Candidate, m: int, base: Vectors, queries: Vectors, truth: NDArray[np.int64], k: int
) -> Trial:
    """Build a graph over vectors `(n, d)`, and measure recall and CPU time of its searches for each ef and rescoring.

    Raises:
        NotSupportedError: if no engine of graphs is installed.
    """
    spec = IndexSpec(**(candidate.spec.to_json() | {"m": m, "metric": "cosine"}))
    reducer = Reducer(spec, candidate.artifact)
    vectors = choose_format(spec, reducer)
    graph = create_graph(spec, vectors, 1)
    if graph is None:
        raise NotSupportedError(f"there is nothing to plan: {find_graph_problem(graph)}")
    rows, originals = vectors.encode(base), reducer.convert_to_half(base)
    begun = time.process_time()
    graph.extend(rows, 1, len(rows))
    build_seconds = time.process_time() - begun
    rescorings = (1,) if candidate.artifact is None else RESCORINGS
    found = dict(_measure_searches(graph, reducer, queries, originals, truth, k, rescorings))
    disk = rows.itemsize * rows.shape[1] + originals.itemsize * originals.shape[1]
    return Trial(len(base), graph.bytes / len(base), disk, build_seconds, found)


def _measure_searches(
    graph: Graph,
    reducer: Reducer,
    queries: Vectors,
    originals: NDArray[np.float16],
    truth: NDArray[np.int64],
    k: int,
    rescorings: Sequence[int],
) -> Iterator[tuple[tuple[int, int], tuple[float, float]]]:
    """Yield each ef and rescoring for which the graph finds enough rows, with recall and microseconds of a query.

    The microseconds are those of reducing the query, searching the graph and ranking the candidates by the originals.
    """
    reduced = reducer.reduce_queries(queries)
    singles = [slice(one, one + 1) for one in range(min(TIMED_QUERIES, len(queries)))]
    reducing = _measure_microseconds(partial(reducer.reduce_queries, queries[one]) for one in singles)
    ranking = {1: 0.0}  # which takes as long whatever the ef
    for ef in EFS:
        possible = [rescoring for rescoring in rescorings if rescoring * k <= ef]
        if not possible or (answer := graph.search(reduced, max(possible) * k, ef)) is None:
            continue
        searching = _measure_microseconds(partial(graph.search, reduced[one], max(possible) * k, ef) for one in singles)
        for rescoring in possible:
            tried = answer[0][:, : rescoring * k]
            if rescoring not in ranking:
                ranking[rescoring] = _measure_microseconds(
                    partial(rescore, queries[one], originals, tried[one], k, "cosine") for one in singles
                )
            best = tried if rescoring == 1 else rescore(queries, originals, tried, k, "cosine")[0]
            recall = float(np.mean([np.isin(right, ours).mean() for right, ours in zip(truth, best, strict=True)]))
            yield (ef, rescoring), (recall, reducing + searching + ranking[rescoring])


def _measure_microseconds(calls: Iterable[Callable[[], object]]) -> float:
    """Return the median CPU time of a call, in microseconds."""
    times = []
    for call in calls:
        begun = time.process_time()
        call()
        times.append(time.process_time() - begun)
    return float(np.median(times)) * 1e6


def extrapolate(candidate: Candidate, m: int, trials: Sequence[Trial], rows: int) -> Iterator[Setting]:
    """Yield each setting with its expectations for `rows` rows, from a trial with few rows and one with more."""
    few, more = trials
    share = math.log(rows / more.rows) / math.log(more.rows / few.rows)
    for (ef, rescoring), (recall, microseconds) in more.found.items():
        if (ef, rescoring) not in few.found:
            continue
        before, faster = few.found[ef, rescoring]
        growth = max(0.0, math.log(more.build_seconds / few.build_seconds) / math.log(more.rows / few.rows))
        yield Setting(
            chain=candidate.chain,
            m=m,
            ef=ef,
            rescore=rescoring,
            memory=round(more.memory * rows),
            disk=more.disk * rows,
            recall=_expit(_logit(recall) + share * min(0.0, _logit(recall) - _logit(before))),
            sampled_recall=recall,
            microseconds=microseconds + share * max(0.0, microseconds - faster),
            build_seconds=more.build_seconds * (rows / more.rows) ** growth,
            fitted_bytes=candidate.fitted_bytes,
        )


def _logit(share: float) -> float:
    """Return the logit of a share, clipped to between `MIN_LOSS` and 1 − `MIN_LOSS`."""
    share = min(max(share, MIN_LOSS), 1 - MIN_LOSS)
    return math.log(share / (1 - share))


def _expit(value: float) -> float:
    """Return the share of which `value` is the logit."""
    return 1 / (1 + math.exp(-value))


def choose_setting(settings: Sequence[Setting], recall: float, memory: int | None) -> Setting:
    """Return the fastest setting within the memory, or the smallest one if there is no limit, that reaches the recall.

    Args:
        settings: measured settings; at least one.
        recall: minimum expected recall.
        memory: maximum bytes of the process for the graph; None for no limit.

    Raises:
        BadValueError: if no setting reaches the recall within the memory; the message says what is possible.
    """
    reaching = [one for one in settings if one.recall >= recall]
    fitting = [one for one in settings if memory is None or one.memory <= memory]
    both = [one for one in reaching if one in fitting]
    if both:
        return min(both, key=lambda one: (one.memory if memory is None else 0, one.microseconds))
    limit = "" if memory is None else f" within {format_bytes(memory)}"
    reasons = []
    if fitting:
        best = max(fitting, key=lambda one: one.recall)
        reasons.append(f"{best.chain} with {best.m} links reaches {best.recall:.3f} with {format_bytes(best.memory)}")
    else:
        least = min(settings, key=lambda one: one.memory)
        reasons.append(f"the smallest graph, {least.chain} with {least.m} links, takes {format_bytes(least.memory)}")
    if reaching and memory is not None:
        least = min(reaching, key=lambda one: one.memory)
        reasons.append(f"{recall} takes {format_bytes(least.memory)} ({least.chain} with {least.m} links)")
    raise BadValueError(f"no setting is expected to reach recall {recall}{limit}: {'; '.join(reasons)}")


def list_best(settings: Sequence[Setting], recall: float) -> list[Setting]:
    """Return for each chain and number of links the fastest setting that reaches the recall, else the nearest to it."""
    groups: dict[tuple[str, int], list[Setting]] = {}
    for one in settings:
        groups.setdefault((one.chain, one.m), []).append(one)
    best = []
    for group in groups.values():
        reaching = [one for one in group if one.recall >= recall]
        best.append(
            min(reaching, key=lambda one: one.microseconds) if reaching else max(group, key=lambda one: one.recall)
        )
    return best


def format_bytes(count: float) -> str:
    """Format a number of bytes with a decimal unit, as `14 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"
