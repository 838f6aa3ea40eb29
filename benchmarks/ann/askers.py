"""Who answers a query of the benchmark: an engine in this process, or our index over HTTP."""

import base64
import shutil
import threading
import time
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import orjson
import torch
from numpy.typing import NDArray

from benchmarks.ann.data import DataError, Numbers, Vectors
from benchmarks.ann.engines import Engine
from benchmarks.ann.job import Job
from benchmarks.ann.spaces import FULL, Space
from benchmarks.server import Server
from lathe.service.home import Home
from lathe.service.registries import open_registry
from lathe.service.settings import read_settings

UPSERTED = 2000
"""Rows of a request that fills an index."""


class Rescorer:
    """The k best of candidates by the float16 originals, in no order, for one query at a time."""

    def __init__(self, originals: NDArray[np.float16], k: int) -> None:
        self.originals, self.k = originals, k

    def __call__(self, query: Vectors, rows: Numbers) -> Numbers:
        """The best of candidates `(c,)` for a query `(d,)`."""
        vectors = torch.from_numpy(self.originals[rows]).float()  # torch widens float16 several times quicker
        scores = torch.mv(vectors, torch.from_numpy(query)).numpy()
        best = np.argpartition(-scores, self.k - 1)[: self.k] if len(rows) > self.k else np.arange(len(rows))
        return rows[best]


class Library:
    """An engine in this process, with the chain before it and the originals behind it."""

    def __init__(self, job: Job, space: Space, engine: Engine, originals: NDArray[np.float16]) -> None:
        self.space, self.engine = space, engine
        self.rescore = Rescorer(originals, job.k)
        self.k = job.k

    def prepare(self, effort: int, _oversampling: int) -> None:
        """Before a setting is measured."""
        self.engine.set_effort(effort)

    def ask(self, query: Vectors, oversampling: int) -> tuple[Numbers, Numbers, tuple[int, int, int]]:
        """Candidates, answer, and the nanoseconds of transform, search and rescoring, of a query `(1, d)`."""
        begun = time.perf_counter_ns()
        reduced = self.space.ask(query)
        transformed = time.perf_counter_ns()
        rows = self.engine.search(reduced, self.k * oversampling)[0]
        searched = time.perf_counter_ns()
        answer = rows
        if oversampling > 1:
            answer = self.rescore(query[0], rows[rows >= 0])
        done = time.perf_counter_ns()
        return rows, answer, (transformed - begun, searched - transformed, done - searched)


class OverHttp:
    """Our index in a server of its own, asked by one connection of Python's own client.

    The candidates it rescored stay its own, so there is no index recall of them, and its time is all search.
    """

    def __init__(self, job: Job, vectors: Vectors, home: Path) -> None:
        self.k = job.k
        self.effort = 0
        name, size = job.method.partition(":")[0], job.size
        if name != FULL:
            registry = open_registry(Home(read_settings().home))
            chain = name.partition("@")[0]
            shutil.copytree(registry.root / chain, home / "chains" / chain)
        self.server = Server(home)
        self.local = threading.local()
        self.server.call(
            "PUT",
            "/indexes/bench",
            chain=name,
            m=job.m,
            ef_construction=job.ef_construction,
            **({"dimensions": size} if size else {"width": vectors.shape[1]} if name == FULL else {}),
        )
        for start in range(0, len(vectors), UPSERTED):
            part = vectors[start : start + UPSERTED]
            ids = [str(number) for number in range(start, start + len(part))]
            self.server.call("POST", "/indexes/bench/upsert", ids=ids, vectors=[as_base64(row) for row in part])
        while self.server.call("GET", "/indexes/bench")["in_graph"] < len(vectors):
            time.sleep(0.05)

    def prepare(self, effort: int, _oversampling: int) -> None:
        """Before a setting is measured."""
        self.effort = effort

    def ask(self, query: Vectors, oversampling: int) -> tuple[Numbers, Numbers, tuple[int, int, int]]:
        """As `Library.ask`."""
        asked = {"vectors": [as_base64(query[0])], "k": self.k, "ef": max(self.effort, self.k)}
        if oversampling > 1:
            asked["rescore"] = oversampling
        begun = time.perf_counter_ns()
        body = orjson.dumps(asked)
        connection = self.connection()
        connection.request("POST", "/indexes/bench/search", body, {"content-type": "application/json"})
        answered = connection.getresponse()
        answer = answered.read()
        done = time.perf_counter_ns()
        if answered.status != 200:
            raise DataError(f"the server answered {answered.status}: {answer[:200].decode(errors='replace')}")
        rows = np.array([int(hit["id"]) for hit in orjson.loads(answer)["results"][0]])
        return rows, rows, (0, done - begun, 0)

    def connection(self) -> HTTPConnection:
        """One for each thread."""
        if not hasattr(self.local, "connection"):
            host = self.server.client.base_url
            self.local.connection = HTTPConnection(host.host, host.port)
        found: HTTPConnection = self.local.connection
        return found

    @property
    def bytes(self) -> int:
        """Of the graph."""
        return int(self.server.call("GET", "/indexes/bench")["bytes"]["graph"])


def as_base64(row: Vectors) -> str:
    """A vector as the index takes it quickest."""
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


Asker = Library | OverHttp
