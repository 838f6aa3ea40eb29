"""Searches that the benchmark times: by an engine in this process, or by Lathe's index over HTTP."""

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
from benchmarks.server import Server, encode_base64, fill_index
from lathe.service.home import Home
from lathe.service.publishing.context import open_registry
from lathe.service.settings import read_settings


class Rescorer:
    """Selects the k best of a query's candidates by their float16 originals.

    The selected rows are in no order.
    """

    def __init__(self, originals: NDArray[np.float16], k: int) -> None:
        self.originals, self.k = originals, k

    def __call__(self, query: Vectors, rows: Numbers) -> Numbers:
        """Return the k best of the candidate rows `(c,)` for a query `(d,)`."""
        vectors = torch.from_numpy(self.originals[rows]).float()  # torch widens float16 several times quicker
        scores = torch.mv(vectors, torch.from_numpy(query)).numpy()
        best = np.argpartition(-scores, self.k - 1)[: self.k] if len(rows) > self.k else np.arange(len(rows))
        return rows[best]


class LocalSearch:
    """A search by an engine in this process.

    The query is first reduced by the chain, and candidates are ranked by the originals.
    """

    def __init__(self, job: Job, space: Space, engine: Engine, originals: NDArray[np.float16]) -> None:
        self.space, self.engine = space, engine
        self.rescore = Rescorer(originals, job.k)
        self.k = job.k

    def set_parameters(self, effort: int, _oversampling: int) -> None:
        """Set the effort of the searches that follow."""
        self.engine.set_effort(effort)

    def run_query(self, query: Vectors, oversampling: int) -> tuple[Numbers, Numbers, tuple[int, int, int]]:
        """Search for one query `(1, d)`.

        Returns:
            Candidates `(c,)`, the best `(k,)` of them, and the nanoseconds of transform, search and rescoring.
        """
        begun = time.perf_counter_ns()
        reduced = self.space.reduce_queries(query)
        transformed = time.perf_counter_ns()
        rows = self.engine.search(reduced, self.k * oversampling)[0]
        searched = time.perf_counter_ns()
        answer = rows
        if oversampling > 1:
            answer = self.rescore(query[0], rows[rows >= 0])
        done = time.perf_counter_ns()
        return rows, answer, (transformed - begun, searched - transformed, done - searched)


class ServerSearch:
    """A search by Lathe's index in a server of its own, over a connection of Python's own client.

    The server does not return the candidates that it rescored, so they have no index recall, and its time is all
    search.
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
        fill_index(
            self.server,
            vectors,
            chain=name,
            m=job.m,
            ef_construction=job.ef_construction,
            **({"dimensions": size} if size else {"width": vectors.shape[1]} if name == FULL else {}),
        )

    def set_parameters(self, effort: int, _oversampling: int) -> None:
        """Set the effort of the searches that follow."""
        self.effort = effort

    def run_query(self, query: Vectors, oversampling: int) -> tuple[Numbers, Numbers, tuple[int, int, int]]:
        """Search for one query, as `LocalSearch.run_query` does."""
        fields = {"vectors": encode_base64(query[:1]), "k": self.k, "ef": max(self.effort, self.k)}
        if oversampling > 1:
            fields["rescore"] = oversampling
        begun = time.perf_counter_ns()
        body = orjson.dumps(fields)
        connection = self._get_connection()
        connection.request("POST", "/indexes/bench/search", body, {"content-type": "application/json"})
        response = connection.getresponse()
        body_bytes = response.read()
        done = time.perf_counter_ns()
        if response.status != 200:
            raise DataError(f"the server answered {response.status}: {body_bytes[:200].decode(errors='replace')}")
        rows = np.array([int(hit["id"]) for hit in orjson.loads(body_bytes)["results"][0]])
        return rows, rows, (0, done - begun, 0)

    def _get_connection(self) -> HTTPConnection:
        """Return the connection of this thread."""
        if not hasattr(self.local, "connection"):
            host = self.server.client.base_url
            self.local.connection = HTTPConnection(host.host, host.port)
        connection: HTTPConnection = self.local.connection
        return connection

    @property
    def bytes(self) -> int:
        """Bytes of the graph."""
        return int(self.server.call("GET", "/indexes/bench")["bytes"]["graph"])


Search = LocalSearch | ServerSearch
