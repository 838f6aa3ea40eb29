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
        set_up: what each of them does first.
    """

    def __init__(self, processes: int, set_up: Callable[[], object] = set_up) -> None:
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
        """End the processes; what waits is dropped."""
        if self.executor is not None:
            self.executor.shutdown(wait=True, cancel_futures=True)
            self.executor = None

    def submit(self, job: Job) -> Future[Any]:
        """Hand a job to a process; a new process, never a fork of one with threads."""
        if self.executor is None:
            self.executor = ProcessPoolExecutor(self.processes, get_context("spawn"), initializer=self.set_up)
        work, arguments = job
        return self.executor.submit(work, *arguments)

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Any]]:
        """Each job's number with what it gave, as they finish; an exception where it failed or its process died.

        A dead process takes the jobs of the others with it. The first that wait are then tried alone, the one that
        kills its process again is given up, and the rest go on together.
        """
        waiting = dict(enumerate(jobs))
        while waiting:
            for index, result in self.together(waiting):
                del waiting[index]
                yield index, result
            for index in list(waiting)[: 2 * self.processes]:
                yield index, self.alone(waiting.pop(index))

    def together(self, jobs: dict[int, Job]) -> Iterator[tuple[int, Any]]:
        """Jobs in all processes, until one of these dies."""
        futures = {self.submit(job): index for index, job in jobs.items()}
        for future in as_completed(futures):
            error = future.exception()
            if isinstance(error, BrokenProcessPool):
                self.executor = None
                return
            yield futures[future], error or future.result()

    def alone(self, job: Job) -> Any:
        """What a job gives while nothing else runs."""
        future = self.submit(job)
        error = future.exception()
        if isinstance(error, BrokenProcessPool):
            self.executor = None
            return EvaluationError("the process that worked on it died; most likely memory ran out")
        return error or future.result()
