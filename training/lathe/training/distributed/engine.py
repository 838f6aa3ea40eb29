"""Engine whose Ray workers encode shards and compute moments, and the connection to Ray.

Ray runs as a cluster, or is started on this machine and shut down afterwards.
"""

import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.training.distributed.pool import Pool, ShardTasks, Task
from lathe.training.distributed.worker import Block, Introduction, RayWorker, describe_environment
from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.errors import EngineError
from lathe.training.fitting.encoded_shards import Position
from lathe.training.fitting.encoding import EncodingRun, Report
from lathe.training.fitting.stacked import SelectedRows, StackedVectors, VectorFile
from lathe.training.sources.shards import Shard
from lathe.transforms.chain import Chain, serialize_chain
from lathe.transforms.statistics import Moments
from lathe.transforms.vectors import BLOCK_ROWS, Vectors

BlockMoments = Callable[[Iterator[Block], bytes | None, bool], Iterator[Moments]]
"""Function that takes blocks, a serialized chain or None, and whether to normalize, and yields the moments in the
order of the blocks. The chain is applied to the rows first, and then the rows are L2-normalized."""


class SharedRows(SelectedRows):
    """Selected rows of encoded vectors on disk, whose moments are computed by workers.

    Indexing reads rows in this process. Blocks of rows are the same as in a fit without workers, and moments are merged
    in the same order. So the moments are equal to the last bit if workers have as many threads as this process.

    Args:
        vectors: vectors in files, as `encode_source` returns them.
        chosen: indices of the selected rows `(m,)`, ascending.
        moments: computes the moments of blocks on the workers.
        chain: fitted chain that is applied to the rows; None for unchanged rows.
    """

    def __init__(
        self, vectors: Vectors, chosen: NDArray[np.int64], moments: BlockMoments, chain: Chain | None = None
    ) -> None:
        super().__init__(vectors, chosen)
        self.moments, self.chain = moments, chain
        if chain is not None:
            self.shape = (len(chosen), chain.dimensions_after(vectors.shape[1]))

    def __getitem__(self, rows: Any, /) -> Any:
        """Read the selected rows at these positions, and transform them if there is a chain of transforms."""
        vectors = super().__getitem__(rows)
        return vectors if self.chain is None else self.chain.transform(vectors)

    def view_through(self, chain: Chain) -> "SharedRows":
        """Return a lazy view of these rows that is also transformed by another fitted chain. No row is read."""
        return SharedRows(self.vectors, self.chosen, self.moments, chain if self.chain is None else self.chain + chain)

    def block_moments(self, unit: bool) -> Iterator[Moments]:
        """Compute the moments of each block of rows on the workers, and yield them in the order of the blocks.

        Rows are transformed by the chain, if there is one, and with `unit` then L2-normalized.
        """
        return self.moments(self.blocks(), None if self.chain is None else serialize_chain(self.chain), unit)

    def blocks(self) -> Iterator[Block]:
        """Yield the selected rows in blocks of `BLOCK_ROWS`: files of a block, and indices of rows in these files."""
        files = _as_stacked(self.vectors)
        for start in range(0, len(self.chosen), BLOCK_ROWS):
            rows = self.chosen[start : start + BLOCK_ROWS]
            first, last = np.searchsorted(files.ends, rows[[0, -1]], side="right").tolist()
            before = int(files.ends[first]) - files.parts[first].rows
            yield Block(files.parts[first : last + 1], files.shape[1], rows - before, start)


def _as_stacked(vectors: Any) -> StackedVectors:
    if isinstance(vectors, StackedVectors):
        return vectors
    return StackedVectors([VectorFile(Path(vectors.filename), vectors.shape[0])], vectors.shape[1])


BLOCKS_AHEAD = 2
"""Number of blocks per worker whose moments (d × d doubles) may wait for the moments of an earlier block."""


@contextmanager
def ray_engine(address: str | None, cores: int, workers: int | None = None) -> Iterator["RayEngine"]:
    """Connect to Ray, or start Ray here, and yield an engine on Ray workers, which are killed after the block.

    Args:
        address: HOST:PORT of a cluster that this machine is a node of; None starts Ray on this machine.
        cores: number of CPU cores for Ray if Ray is started on this machine.
        workers: number of worker processes, which share the cores; None for one worker per core.

    Raises:
        EngineError: if Ray cannot be used, or the cluster has no CPU cores.
    """
    with connect_cluster(address, cores) as nodes:
        total = sum(nodes)
        if total == 0:
            raise EngineError(f"the Ray cluster at {address} has no CPU cores")

        # More workers than cores would wait for a core forever.
        count = min(workers or total, total)
        engine = RayEngine(count, min(total // count, *filter(None, nodes)))  # all cores of a worker are on one node
        try:
            yield engine
        finally:
            engine.close()


class RayEngine:
    """Engine that encodes and computes moments on Ray workers. Ray must be connected.

    Workers are started when they are needed, and replaced by others for another encoder.

    Args:
        count: number of workers.
        threads: number of CPU threads of a worker.
    """

    def __init__(self, count: int, threads: int) -> None:
        self.count, self.threads = count, threads
        self.pool: Pool | None = None
        self.encoder: TextEncoder | None = None

    def encode(self, run: EncodingRun, positions: Mapping[Shard, Position], report: Report) -> dict[str, str]:
        """Encode the unfinished shards of a run on the workers, and return the reasons why files are damaged, by name.

        A damaged file is an error unless the source skips damaged files. `report` is called about twice a second with a
        shard and its rows done. See `FitEngine.encode`.
        """
        tasks = ShardTasks(run, positions)
        if tasks.shards:
            for done in self._get_pool(run.encoder).run_tasks(
                tasks, on_wait=lambda busy: tasks.report_progress(busy, report)
            ):
                tasks.record_outcome(done, report)
        return tasks.damaged

    def select_rows(self, vectors: Vectors, chosen: NDArray[np.int64]) -> Vectors:
        """Return a lazy view of the rows at the ascending indices `chosen`, whose moments the workers compute."""
        return SharedRows(vectors, chosen, self.compute_moments)

    def compute_moments(self, blocks: Iterator[Block], chain: bytes | None, unit: bool) -> Iterator[Moments]:
        """Compute each block's moments on the workers, and yield them in the blocks' order. NaN or inf in a row raises.

        Args:
            blocks: blocks of rows.
            chain: serialized chain that is applied to the rows first; None for no chain.
            unit: whether the rows are L2-normalized after the chain.

        Raises:
            InputError: if a row holds NaN or inf; the message names the row.
            EngineError: if the workers cannot do the work.
        """
        import ray

        stored_chain = None if chain is None else ray.put(chain)  # sent once, not with every block
        tasks = (Task(f"the moments of the rows from {b.first:,}", "moments", (b, stored_chain, unit)) for b in blocks)
        pool, waiting, next_number = self.pool or self._get_pool(None), {}, 0

        for done in pool.run_tasks(tasks, max_ahead=BLOCKS_AHEAD * self.count):
            if done.error is not None:
                raise done.error
            waiting[done.number] = Moments.from_arrays(done.result)
            while next_number in waiting:
                yield waiting.pop(next_number)
                next_number += 1

    def _get_pool(self, encoder: TextEncoder | None) -> Pool:
        """Return the pool of workers with this encoder. If the running pool has another encoder, it is replaced."""
        if self.pool is None or encoder is not self.encoder:
            self.close()
            self.pool, self.encoder = self._start_pool(encoder), encoder
        return self.pool

    def _start_pool(self, encoder: TextEncoder | None) -> Pool:
        """Start a pool of workers that load the encoder. Encoders behind an embeddings API are refused.

        Workers with other versions of packages than this process are refused when they introduce themselves.

        Raises:
            EngineError: if the encoder is behind an embeddings API.
        """
        if encoder is not None and encoder.spec.upstream is not None:
            raise EngineError(
                f"{encoder.name} is behind an embeddings API, whose rate limits need one process: use --engine local"
            )

        import ray

        environment = describe_environment(encoder)
        device = "cpu" if encoder is None else encoder.device.partition(":")[0]
        spec, prompt_name = (None, None) if encoder is None else (encoder.spec, encoder.default_prompt_name)
        actor = ray.remote(RayWorker).options(num_cpus=self.threads, num_gpus=int(device == "cuda"))

        return Pool(
            start=lambda: actor.remote(spec, prompt_name, device, self.threads),
            introduce=lambda worker: worker.introduce.remote(),
            accept=lambda introduction: check_same_versions(environment, introduction),
            count=self.count,
        )

    def close(self) -> None:
        """Kill the workers, if any were started."""
        if self.pool is not None:
            self.pool.close()
            self.pool = None


def check_same_versions(local: Mapping[str, Any], worker: Introduction) -> None:
    """Raise `EngineError` if a worker has other versions of packages or another encoder than this process.

    Args:
        local: description of this process, from `describe_environment`.
        worker: introduction of the worker.
    """
    for name, expected in local.items():
        actual = worker.described.get(name)
        if actual == expected:
            continue
        if name == "encoder" and actual and expected:
            setting = next(key for key in {**expected, **actual} if expected.get(key) != actual.get(key))
            name, expected, actual = f"the encoder's {setting}", expected.get(setting), actual.get(setting)
        raise EngineError(f"{worker.node} differs from this process: {name} is {actual} there and {expected} here")


SHORT = "/tmp"
"""Folder for Ray's files. It has a short path, because the path of a socket may have at most 107 bytes."""

PREFIX = "lathe-ray-"
"""Beginning of the name of a folder for Ray's files, before the process id."""

CONNECT_SECONDS = 5.0
"""Seconds to wait for a connection to the port of a cluster."""

ANSWER_SECONDS = 15.0
"""Seconds to wait for a test process to connect to Ray."""

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray warns of a change in its next version
}
"""Environment variables that turn off Ray's usage statistics and a warning."""

LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Environment variable that makes Ray listen on 127.0.0.1 only, on every system. Otherwise, anybody who can connect to
Ray's ports could run code."""

TRY = "import sys, logging, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)"
"""Python code of the process that tests whether a cluster accepts a connection."""


@contextmanager
def connect_cluster(address: str | None, cores: int) -> Iterator[list[int]]:
    """Connect to Ray or start it here, yield the CPU cores of each node, and disconnect. Sets environment variables.

    Sets environment variables of this process. Ray is shut down after the block if it was started here, and the
    temporary folder is deleted.

    Args:
        address: HOST:PORT of a cluster that this machine is a node of; None starts Ray on this machine, on the loopback
            interface only.
        cores: number of CPU cores for Ray if Ray is started on this machine.

    Raises:
        EngineError: if Ray is not installed, cannot be started, or does not answer.
    """
    if find_spec("ray") is None:
        raise EngineError("the engine ray needs Ray: pip install 'lathe-training[ray]'")

    os.environ |= QUIET | (LOOPBACK if address is None else {})  # read when Ray is imported, and by Ray's processes
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
    if address is not None:
        # Checked in another process first, because Ray kills a process that finds no cluster.
        _check_cluster_answers(address)

    folder = make_ray_folder(Path(SHORT if Path(SHORT).is_dir() else tempfile.gettempdir()))
    if address is None:
        options |= {"address": "local", "num_cpus": cores, "include_dashboard": False, "_temp_dir": folder}

    import ray

    try:
        try:
            with chdir(folder):  # Ray's workers import from this process's working directory
                ray.init(**options)
        except Exception as error:  # if Ray does not start within 30 s, it raises a plain Exception
            raise EngineError(f"Ray cannot be used: {error}") from error
        yield [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def make_ray_folder(below: Path) -> str:
    """Create a temporary folder for Ray's files, named after this process. Delete folders of ended processes.

    Folders are only deleted on Linux, where /proc tells which processes run.
    """
    for old in below.glob(f"{PREFIX}*-*"):
        owner = old.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and Path("/proc/self").exists():
            shutil.rmtree(old, ignore_errors=True)  # a folder of another user stays
    return tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=below)


def _check_cluster_answers(address: str) -> None:
    """Raise `EngineError` unless the address is HOST:PORT and a Ray cluster answers there within about 20 s.

    The connection is tried in another process, because Ray kills a process that finds no cluster.
    """
    host, _, port = address.rpartition(":")
    if not host or "://" in host or not port.isdigit():
        raise EngineError(
            f"the address of a Ray cluster is HOST:PORT, as `ray start --head` prints it, not {address!r}"
        )

    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise EngineError(f"no Ray cluster answers at {address}: {error}") from None

    try:
        attempt = subprocess.run(
            [sys.executable, "-P", "-c", TRY, address], capture_output=True, text=True, timeout=ANSWER_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"no Ray cluster answers at {address} within {ANSWER_SECONDS:.0f} s") from None

    if attempt.returncode != 0:
        lines = [line for line in attempt.stderr.splitlines() if line.strip()]
        raise EngineError(
            f"the Ray cluster at {address} cannot be used: {lines[-1] if lines else 'it does not answer'}"
        )
