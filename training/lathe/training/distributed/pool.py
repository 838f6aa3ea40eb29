"""Pool of Ray actors as workers, each of which does one task at a time.

One that dies is replaced.

            introduced, like this process          a task
starting ───────────────────────────────► idle ◄────────────► busy
   ▲                                                            │ killed, out of memory, node lost:
   └──────────────── replaced ◄─────────────────────────────────┘ its task goes to the next idle worker

Ray's `ActorPool` does less: the task of a worker that dies is lost, its error does not name the task, and the pool goes
on with one worker fewer.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from lathe.training.distributed.tasks import MAX_TRIES, Task, TaskQueue, TaskResult
from lathe.training.distributed.worker import Introduction
from lathe.training.errors import EngineError

POLL_SECONDS = 0.5
"""Seconds between two checks of the workers."""

START_SECONDS = 300.0
"""Seconds within which some worker must be ready; a node may have to load a large model."""

OUT_OF_MEMORY = "out of memory"
"""Phrase in the messages of torch, the system and Ray's memory monitor when memory runs out."""

MORE_MEMORY = "take fewer workers (--workers) or machines with more memory"
"""Advice for messages when memory runs out."""


class Pool:
    """Pool of workers, all started at once and used as they become ready.

    Args:
        start: starts a worker and returns its handle, without waiting.
        introduce: asks a worker to introduce itself and returns a reference to the answer, without waiting.
        accept: raises `EngineError` for a worker that cannot be used.
        count: number of workers.

    Attributes:
        starting: workers that have not introduced themselves yet, by reference.
        ready: introductions of the usable workers.
        failed_starts: number of workers that died as they started.
        last_ready: time at which some worker was last ready.
    """

    def __init__(
        self,
        start: Callable[[], Any],
        introduce: Callable[[Any], Any],
        accept: Callable[[Introduction], None],
        count: int,
    ) -> None:
        self.start, self.introduce, self.accept = start, introduce, accept
        self.count = count
        self.starting: dict[Any, Any] = {}
        self.ready: dict[Any, Introduction] = {}
        self.failed_starts = 0
        self.last_ready = time.monotonic()

        for _ in range(count):
            self._start_worker()

    def _start_worker(self) -> None:
        """Start a worker and ask it to introduce itself, without waiting."""
        worker = self.start()
        self.starting[self.introduce(worker)] = worker

    def run_tasks(
        self,
        tasks: Iterable[Task],
        lead: int | None = None,
        on_wait: Callable[[list[Task]], None] = lambda busy: None,
    ) -> Iterator[TaskResult]:
        """Run all tasks on the workers, and yield their results in the order in which they finish. A result holds what
        the task returned or the error that it raised.

        A task's error is part of its `TaskResult`. If a worker dies, it is replaced and its task is run again.

        Args:
            tasks: taken from the iterable in order as workers become free.
            lead: maximum number of tasks started from the oldest unfinished one on, itself included; None for no limit.
            on_wait: called with the running tasks, about twice a second; an exception that it raises stops the pass.

        Raises:
            EngineError: if no worker becomes ready, one differs from this process, or several die at the same task.
        """
        import ray

        queue, idle = TaskQueue(tasks, lead), list(self.ready)
        busy: dict[Any, tuple[Any, int, Task]] = {}
        while True:
            # The queue gives None while its oldest task is too far behind, though tasks are left.
            while idle and (numbered_task := queue.take()) is not None:
                worker, (number, task) = idle.pop(), numbered_task
                busy[getattr(worker, task.method).remote(*task.arguments)] = (worker, number, task)

            if idle and not busy:
                return

            finished, _ = ray.wait([*busy, *self.starting], timeout=POLL_SECONDS)
            on_wait([task for _, _, task in busy.values()])
            for reference in finished:
                if reference in self.starting:
                    idle += self._admit(reference)
                    continue

                worker, number, task = busy.pop(reference)
                try:
                    done = TaskResult(number, task, ray.get(reference))
                except ray.exceptions.RayTaskError as error:
                    done = TaskResult(number, task, error=_worker_exception(error, task))
                except ray.exceptions.RayError as error:
                    # The worker died, not the task: another worker takes it, up to MAX_TRIES times.
                    self._replace(worker)
                    queue.put_back(number, task, _explain_error(error))
                    continue

                queue.finish(number)
                idle.append(worker)
                yield done

            self._require_ready_worker()

    def _admit(self, reference: Any) -> list[Any]:
        """Add a worker that has started to the ready ones, and return it in a list. If it died while starting, another
        is started and the list is empty.

        Raises:
            EngineError: if the worker cannot be used, or `MAX_TRIES` workers have died as they started.
        """
        import ray

        worker = self.starting.pop(reference)
        try:
            introduction = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise EngineError(f"a worker cannot start: {_explain_error(error.cause or error)}") from error
        except ray.exceptions.RayError as error:
            # A module that one worker lacks, all lack: another start would end alike.
            self.failed_starts += 1
            if self.failed_starts == MAX_TRIES or "No module named" in str(error):
                raise EngineError(f"workers die as they start: {_explain_error(error)}") from error
            self._start_worker()
            return []

        self.accept(introduction)
        self.ready[worker] = introduction
        return [worker]

    def _replace(self, worker: Any) -> None:
        """Kill a worker that died or cannot be reached, and start another."""
        import ray

        del self.ready[worker]
        ray.kill(worker)  # it may be alive, and just not to be reached
        self.last_ready = time.monotonic()
        self._start_worker()

    def _require_ready_worker(self) -> None:
        """Check that a worker has been ready within the last `START_SECONDS`.

        Raises:
            EngineError: if none has.
        """
        if self.ready:
            self.last_ready = time.monotonic()
        elif time.monotonic() - self.last_ready > START_SECONDS:
            raise EngineError(
                f"none of {self.count} workers was ready within {START_SECONDS:.0f} s: Ray has no room for them "
                "(ray status says what is taken), or their nodes cannot load the encoder"
            )

    def close(self) -> None:
        """Kill all workers. Errors are ignored, because a cluster that is gone has ended them already."""
        import ray

        for worker in [*self.ready, *self.starting.values()]:
            with suppress(Exception):  # a cluster that is gone has ended them already
                ray.kill(worker)


def _worker_exception(error: Any, task: Task) -> Exception:
    """Return the exception that a worker's method raised, given Ray's error. If the worker's memory ran out, return an
    `EngineError` with advice instead.
    """
    cause: Exception = error.cause or error
    if isinstance(cause, MemoryError) or "can't allocate memory" in str(cause) or OUT_OF_MEMORY in str(cause):
        return EngineError(f"a worker ran out of memory at {task.name}: {MORE_MEMORY}")
    return cause


def _explain_error(error: Exception) -> str:
    """Return the cause that a Ray error states, for messages. Advice is added if a module or memory is lacking."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if missing := next((line for line in lines if "No module named" in line), None):
        return f"{missing.partition(': ')[2] or missing}: every node needs Lathe, installed as it is here"
    if OUT_OF_MEMORY in str(error):  # Ray's last line is a page of its manual
        return f"out of memory; {MORE_MEMORY}"
    return lines[-1] if lines else type(error).__name__
