"""Process pool that survives the death of a worker process."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from types import TracebackType
from typing import Any, Self

from lathe.training.errors import EvaluationError
from lathe.training.evaluation.worker import prepare_process

Job = tuple[Callable[..., Any], tuple[Any, ...]]
"""Function and its arguments, all picklable."""


class Workers:
    """Pool of single-threaded processes, started at the first job.

    As a context manager, it stops them at the end of the block.

    Args:
        processes: number of processes.
        set_up: function that each process runs first.
    """

    def __init__(self, processes: int, set_up: Callable[[], object] = prepare_process) -> None:
        self.processes = processes
        self.set_up = set_up
        self.executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Wait for running jobs, cancel waiting ones, and end the processes.
        Jobs that are submitted later start new processes.
        """
        if self.executor is not None:
            self.executor.shutdown(wait=True, cancel_futures=True)
            self.executor = None

    def _submit(self, job: Job) -> Future[Any]:
        """Submit a job to the process pool, and return its future.
        If there is no pool, its processes are started first.

        They are started by `spawn`, since a process with threads must not be forked.
        """
        if self.executor is None:
            self.executor = ProcessPoolExecutor(self.processes, get_context("spawn"), initializer=self.set_up)
        work, arguments = job
        return self.executor.submit(work, *arguments)

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Any]]:
        """Run jobs in parallel processes, and yield each job's position in `jobs` with its result or exception.
        They come in the order in which the jobs finish.

        If a process dies, the pool fails the jobs of all processes. The first waiting jobs are then retried alone: one
        whose process dies again yields an `EvaluationError`, and the remaining jobs run in parallel again.
        """
        waiting = dict(enumerate(jobs))
        while waiting:
            for index, result in self._run_parallel(waiting):
                del waiting[index]
                yield index, result
            # The job that killed a process is most likely among the first that wait.
            for index in list(waiting)[: 2 * self.processes]:
                yield index, self._run_alone(waiting.pop(index))

    def _run_parallel(self, jobs: dict[int, Job]) -> Iterator[tuple[int, Any]]:
        """Run jobs in parallel, and yield each job's key with its result or the exception it raised.
        If a process dies, the iteration ends early and the remaining jobs have no result.

        The next job then starts new processes.

        The jobs that are left then have no result, and the next job starts new processes.
        """
        futures = {self._submit(job): index for index, job in jobs.items()}
        for future in as_completed(futures):
            error = future.exception()
            if isinstance(error, BrokenProcessPool):
                self.executor = None
                return
            yield futures[future], error or future.result()

    def _run_alone(self, job: Job) -> Any:
        """Run one job while no other runs, and return its result or the exception it raised.
        If the process dies, an `EvaluationError` is returned.

        Nothing is raised. If the process dies, the next job starts new processes.
        """
        future = self._submit(job)
        error = future.exception()
        if isinstance(error, BrokenProcessPool):
            self.executor = None
            return EvaluationError("the process that worked on it died; most likely memory ran out")
        return error or future.result()
