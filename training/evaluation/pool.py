"""Worker processes that may die without taking the evaluation along."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from types import TracebackType
from typing import Any, Self

from training.errors import EvaluationError
from training.evaluation.worker import set_up

Job = tuple[Callable[..., Any], tuple[Any, ...]]


class Workers:
    """Some processes of one thread each, started when there is work.

    Args:
        processes: how many.
    """

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self.executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the processes; what waits is dropped."""
        if self.executor is not None:
            self.executor.shutdown(wait=True, cancel_futures=True)
            self.executor = None

    def submit(self, job: Job) -> Future[Any]:
        """Hand a job to a process; a new process, never a fork of one with threads."""
        if self.executor is None:
            self.executor = ProcessPoolExecutor(self.processes, get_context("spawn"), initializer=set_up)
        work, arguments = job
        return self.executor.submit(work, *arguments)

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Any]]:
        """Each job's number with what it gave, as they finish; an exception where its process died.

        A dead process takes the jobs of the others with it: all those are tried again one by one, and only one that
        kills its process twice is given up.
        """
        waiting = dict(enumerate(jobs))
        try:
            futures = {self.submit(job): index for index, job in waiting.items()}
            for future in as_completed(futures):
                result = future.result()
                del waiting[futures[future]]
                yield futures[future], result
        except BrokenProcessPool:
            self.executor = None
            yield from self.run_singly(waiting)

    def run_singly(self, jobs: dict[int, Job]) -> Iterator[tuple[int, Any]]:
        """The jobs one after another."""
        for index, job in jobs.items():
            try:
                yield index, self.submit(job).result()
            except BrokenProcessPool:
                self.executor = None
                yield index, EvaluationError("the process that worked on it died; most likely memory ran out")
