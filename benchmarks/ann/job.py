"""The job of one point of the grid, as its process reads it."""

from dataclasses import asdict, dataclass

import orjson

SERVER = "lathe"
"""The engine that is our own index over HTTP."""


@dataclass(frozen=True)
class Job:
    """What a point measures, and with which files.

    Attributes:
        method: method by which the vectors are reduced.
        size: dimensions that its chain is cut to; None for all.
        engine: name for `make_engine`, or `lathe`.
        m: links of a node of a graph.
        ef_construction: candidates examined when it is linked.
        seed: seed of graph and codes.
        rows: rows of the corpus that are searched.
        k: number of neighbours.
        efs: efforts of graphs.
        oversampling: multiples of k of candidates that are rescored with the float16 originals; 1 rescores none.
        runs: number of times that every query is timed.
        wanted: recall at whose fastest setting several callers search at once.
        originals: file of the float16 corpus `(n, d)`.
        reduced: file of the float32 corpus `(n, k)`.
        queries: file of the original queries `(q, d)`.
        truth: file of the rows `(q, k)` of the exact search of originals.
        exact: file of the rows `(q, k · largest oversampling)` of the exact search of reduced vectors.
        chain: folder of the chain.
        result: file for the result.
    """

    method: str
    size: int | None
    engine: str
    m: int
    ef_construction: int
    seed: int
    rows: int
    k: int
    efs: tuple[int, ...]
    oversampling: tuple[int, ...]
    runs: int
    wanted: float
    originals: str
    reduced: str
    queries: str
    truth: str
    exact: str
    chain: str
    result: str

    def to_json(self) -> bytes:
        """Serialize the job for the process that runs it."""
        return orjson.dumps(asdict(self))
