"""Workers as Ray's actors: each does one task at a time, and one that dies is replaced.

            introduced, like this process          a task
starting ───────────────────────────────► idle ◄────────────► busy
   ▲                                                            │ killed, out of memory, node lost:
   └──────────────── another in its place ◄─────────────────────┘ its task goes to the next that is idle
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from training.distributed.tasks import TRIES, Done, Queue, Task
from training.distributed.worker import Introduction
from training.errors import EngineError

POLL_SECONDS = 0.5
START_SECONDS = 300.0
"""Within which some worker must be ready; a node may have to load a large model."""

OUT_OF_MEMORY = "out of memory"
"""What torch, the system and Ray's memory monitor have in their messages."""

MORE_MEMORY = "take fewer workers (--workers) or machines with more memory"


class Pool:
    """Workers that are started at once and used as they become ready.

    Args:
        start: starts one and gives its handle, without waiting.
        introduce: asks one to introduce itself, without waiting.
        accept: raises `EngineError` for one that cannot be used.
        count: how many.
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
            self.add()

    def add(self) -> None:
        """Start a worker."""
        worker = self.start()
        self.starting[self.introduce(worker)] = worker

    def each(
        self,
        tasks: Iterable[Task],
        lead: int | None = None,
        on_wait: Callable[[list[Task]], None] = lambda busy: None,
    ) -> Iterator[Done]:
        """Have all tasks done; yields them in the order in which they are finished.

        Args:
            tasks: begun in their order, taken from the iterator as workers become free.
            lead: see `Queue`.
            on_wait: told the tasks under way, about twice a second; what it raises stops all.

        Raises:
            EngineError: if no worker can be had, one is unlike this process, or several die at one task.
        """
        import ray

        queue, idle = Queue(tasks, lead), list(self.ready)
        busy: dict[Any, tuple[Any, int, Task]] = {}
        while True:
            while idle and (taken := queue.take()) is not None:
                worker, (number, task) = idle.pop(), taken
                busy[getattr(worker, task.method).remote(*task.arguments)] = (worker, number, task)
            if idle and not busy:
                return
            finished, _ = ray.wait([*busy, *self.starting], timeout=POLL_SECONDS)
            on_wait([task for _, _, task in busy.values()])
            for reference in finished:
                if reference in self.starting:
                    idle += self.join(reference)
                    continue
                worker, number, task = busy.pop(reference)
                try:
                    done = Done(number, task, ray.get(reference))
                except ray.exceptions.RayTaskError as error:
                    done = Done(number, task, error=raised(error, task))
                except ray.exceptions.RayError as error:
                    self.replace(worker)
                    queue.put_back(number, task, in_short(error))
                    continue
                queue.finish(number)
                idle.append(worker)
                yield done
            self.require_some()

    def join(self, reference: Any) -> list[Any]:
        """The worker that has introduced itself; none if it died of that, and another was started.

        Raises:
            EngineError: if it cannot be used, or too many have died.
        """
        import ray

        worker = self.starting.pop(reference)
        try:
            introduction = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise EngineError(f"a worker cannot start: {in_short(error.cause or error)}") from error
        except ray.exceptions.RayError as error:
            self.failed_starts += 1
            if self.failed_starts == TRIES or "No module named" in str(error):
                raise EngineError(f"workers die as they start: {in_short(error)}") from error
            self.add()
            return []
        self.accept(introduction)
        self.ready[worker] = introduction
        return [worker]

    def replace(self, worker: Any) -> None:
        """Start another worker in the place of one that died."""
        import ray

        del self.ready[worker]
        ray.kill(worker)  # it may be alive, and just not to be reached
        self.last_ready = time.monotonic()
        self.add()

    def require_some(self) -> None:
        """Raise `EngineError` if there has been no worker for too long."""
        if self.ready:
            self.last_ready = time.monotonic()
        elif time.monotonic() - self.last_ready > START_SECONDS:
            raise EngineError(
                f"none of {self.count} workers was ready within {START_SECONDS:.0f} s: Ray has no room for them "
                "(ray status says what is taken), or their nodes cannot load the encoder"
            )

    def close(self) -> None:
        """End all workers."""
        import ray

        for worker in [*self.ready, *self.starting.values()]:
            with suppress(Exception):  # a cluster that is gone has ended them already
                ray.kill(worker)


def raised(error: Any, task: Task) -> Exception:
    """What a worker's method raised, as this process would have."""
    cause: Exception = error.cause or error
    if isinstance(cause, MemoryError) or "can't allocate memory" in str(cause) or OUT_OF_MEMORY in str(cause):
        return EngineError(f"a worker ran out of memory at {task.name}: {MORE_MEMORY}")
    return cause


def in_short(error: Exception) -> str:
    """The line of one of Ray's messages that says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if missing := next((line for line in lines if "No module named" in line), None):
        return f"{missing.partition(': ')[2] or missing}: every node needs Lathe, installed as it is here"
    if OUT_OF_MEMORY in str(error):  # Ray's last line is a page of its manual
        return f"out of memory; {MORE_MEMORY}"
    return lines[-1] if lines else type(error).__name__
