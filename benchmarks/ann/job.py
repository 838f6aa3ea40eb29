"""What one point of the grid is to do, as its process reads it."""

from dataclasses import asdict, dataclass

import orjson

SERVER = "lathe"
"""The engine that is our own index over HTTP."""


@dataclass(frozen=True)
class Job:
    """What a point measures, and with which files.

    Attributes:
        method: what the vectors are reduced by.
        size: that its chain is cut to; None for all it gives.
        engine: as `make_engine` names it, or `lathe`.
        m: links of a node of a graph.
        ef_construction: candidates looked at when it is linked.
        seed: of graph and codes.
        rows: of the corpus that are searched.
        k: neighbours wanted.
        efs: efforts of graphs.
        oversampling: how many times k candidates are rescored with the float16 originals; 1 rescores none.
        runs: times every query is asked.
        wanted: recall at whose cheapest setting several callers search at once.
        originals: float16 corpus `(n, d)`.
        reduced: float32 corpus `(n, k)`.
        queries: originals `(q, d)`.
        truth: the rows of the exact search of originals `(q, k)`.
        exact: the rows of the exact search of reduced vectors `(q, k · the most oversampling)`.
        chain: folder of the chain.
        result: file for what was found.
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

    def json(self) -> bytes:
        """For the process that does it."""
        return orjson.dumps(asdict(self))
