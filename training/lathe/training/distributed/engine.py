"""Engine whose Ray workers encode shards and compute moments."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.training.distributed.cluster import connect_cluster
from lathe.training.distributed.encoding import ShardTasks
from lathe.training.distributed.pool import Pool
from lathe.training.distributed.rows import SharedRows
from lathe.training.distributed.tasks import Task
from lathe.training.distributed.worker import Block, Introduction, Worker, describe_environment
from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.errors import EngineError
from lathe.training.fitting.encoded_shards import Position
from lathe.training.fitting.encoding_run import EncodingRun
from lathe.training.fitting.engines import Report
from lathe.training.sources.shards import Shard
from lathe.transforms.statistics import Moments
from lathe.transforms.vectors import Vectors

BLOCKS_AHEAD = 2
"""Number of blocks per worker whose moments may wait for an earlier block's: d × d doubles each."""


@contextmanager
def ray_engine(address: str | None, cores: int, workers: int | None = None) -> Iterator["RayEngine"]:
    """Connect to Ray and yield an engine on it; end its workers and disconnect after the block.

    Args:
        address: HOST:PORT of a cluster that this machine is a node of; None starts Ray on this machine alone.
        cores: CPU cores that a Ray started here may use.
        workers: number of worker processes, which share the cores; None is one for each core.

    Raises:
        EngineError: if Ray cannot be used, or the cluster has no CPU cores.
    """
    with connect_cluster(address, cores) as nodes:
        found = sum(nodes)
        if found == 0:
            raise EngineError(f"the Ray cluster at {address} has no CPU cores")
        count = min(workers or found, found)
        engine = RayEngine(count, min(found // count, *filter(None, nodes)))  # a worker has all its cores on one node
        try:
            yield engine
        finally:
            engine.close()


class RayEngine:
    """Engine on the workers of a Ray connection; they are started when needed, and restarted for another encoder.

    Args:
        count: number of workers.
        threads: CPU threads of each worker.
    """

    def __init__(self, count: int, threads: int) -> None:
        self.count, self.threads = count, threads
        self.pool: Pool | None = None
        self.encoder: TextEncoder | None = None

    def encode(self, run: EncodingRun, positions: Mapping[Shard, Position], report: Report) -> dict[str, str]:
        """Encode the unfinished shards of a run into their folders, on the workers; return damaged files with reasons.

        Workers are started, or restarted if they have another encoder. A damaged file raises `SourceError` unless the
        source skips such files.

        Args:
            run: the shards, their folders and the encoder.
            positions: position of each shard at the start.
            report: called with a shard and its rows done, about twice a second; they are read from the folders.
        """
        tasks = ShardTasks(run, positions)
        if tasks.shards:
            for done in self._pool_for(run.encoder).run_tasks(
                tasks, on_wait=lambda busy: tasks.report_progress(busy, report)
            ):
                tasks.record_outcome(done, report)
        return tasks.damaged

    def select_rows(self, vectors: Vectors, chosen: NDArray[np.int64]) -> Vectors:
        """Return the chosen rows as a lazy view whose moments the workers compute; see `Engine.select_rows`."""
        return SharedRows(vectors, chosen, self.compute_moments)

    def compute_moments(self, blocks: Iterator[Block], chain: bytes | None, unit: bool) -> Iterator[Moments]:
        """Compute the moments of each block on the workers, and yield them in the order of the blocks.

        Args:
            blocks: the rows of each block.
            chain: serialized chain applied to the rows first; None for none.
            unit: whether the rows are L2-normalized first.

        Raises:
            InputError: if a row holds NaN or inf; names the row.
            EngineError: if the workers cannot do the work.
        """
        import ray

        sent = None if chain is None else ray.put(chain)  # once, not with each block
        tasks = (Task(f"the moments of the rows from {b.first:,}", "moments", (b, sent, unit)) for b in blocks)
        pool, early, turn = self.pool or self._pool_for(None), {}, 0
        for done in pool.run_tasks(tasks, lead=BLOCKS_AHEAD * self.count):
            if done.error is not None:
                raise done.error
            early[done.number] = Moments.from_arrays(done.result)
            while turn in early:
                yield early.pop(turn)
                turn += 1

    def _pool_for(self, encoder: TextEncoder | None) -> Pool:
        """Return a pool whose workers have loaded the encoder; a pool of another encoder is closed and replaced."""
        if self.pool is None or encoder is not self.encoder:
            self.close()
            self.pool, self.encoder = self._start_pool(encoder), encoder
        return self.pool

    def _start_pool(self, encoder: TextEncoder | None) -> Pool:
        """Start a pool of workers that load the encoder; it rejects workers with other versions than this process.

        Raises:
            EngineError: if the encoder is behind an embeddings API.
        """
        if encoder is not None and encoder.spec.upstream is not None:
            raise EngineError(
                f"{encoder.name} is behind an embeddings API, whose rate limits hold in one process: use --engine local"
            )
        import ray

        mine = describe_environment(encoder)
        device = "cpu" if encoder is None else encoder.device.partition(":")[0]
        spec = None if encoder is None else encoder.spec
        actor = ray.remote(Worker).options(num_cpus=self.threads, num_gpus=int(device == "cuda"))
        return Pool(
            start=lambda: actor.remote(spec, device, self.threads),
            introduce=lambda worker: worker.introduce.remote(),
            accept=lambda theirs: require_same_versions(mine, theirs),
            count=self.count,
        )

    def close(self) -> None:
        """End the workers, if any."""
        if self.pool is not None:
            self.pool.close()
            self.pool = None


def require_same_versions(mine: Mapping[str, Any], theirs: Introduction) -> None:
    """Raise `EngineError`, naming the difference, unless a worker has the versions and the encoder of this process.

    Args:
        mine: description of this process, from `describe_environment`.
        theirs: introduction of the worker.
    """
    for what, here in mine.items():
        there = theirs.described.get(what)
        if here == there:
            continue
        if what == "encoder" and here and there:
            differs = next(key for key in {**here, **there} if here.get(key) != there.get(key))
            what, here, there = f"the encoder's {differs}", here.get(differs), there.get(differs)
        raise EngineError(f"{theirs.node} is unlike this process: {what} is {there} there and {here} here")
