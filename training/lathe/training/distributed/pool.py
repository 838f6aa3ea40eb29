"""Pool of Ray actors as workers, which run one task at a time and are replaced if they die, and the tasks of encoding.

            introduced, same versions as here      a task
starting ───────────────────────────────► idle ◄────────────► busy
   ▲                                                            │ killed, out of memory, node lost:
   └──────────────── replaced ◄─────────────────────────────────┘ its task goes to the next idle worker

Ray's `ActorPool` does not replace workers. The task of a worker that dies is lost, the error does not name it, and the
pool continues with fewer workers.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from lathe.training.distributed.worker import Introduction, Token
from lathe.training.errors import EngineError, SourceError
from lathe.training.fitting.encoded_shards import Position, read_position
from lathe.training.fitting.encoding import EncodingRun, Report
from lathe.training.sources.hub import is_hub
from lathe.training.sources.remote import is_remote
from lathe.training.sources.shards import Shard, is_path

MAX_TRIES = 3
"""Number of workers that may die at a task, or while starting, before the pool gives up."""


@dataclass(frozen=True)
class Task:
    """A call of a worker's method.

    Attributes:
        name: description for messages.
        method: name of a method of `Worker`.
        arguments: arguments of the method.
    """

    name: str
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class _TaskResult:
    """A finished task with the return value or the exception of the method.

    Attributes:
        number: position of the task among all tasks.
        task: the task.
        result: return value of the method.
        error: exception that the method raised; None if it returned.
    """

    number: int
    task: Task
    result: Any = None
    error: Exception | None = None


class TaskQueue:
    """Queue of tasks from an iterable, which may be lazy. Tasks whose worker died are taken first.

    Args:
        tasks: the tasks.
        max_ahead: maximum number of started tasks from the oldest unfinished task on, including that task; None for no
            limit.

    Attributes:
        waiting: iterator of `(number, task)` over tasks that are not started.
        retries: `(number, task)` of tasks whose worker died.
        started: number of started tasks.
        unfinished: numbers of started tasks that are not finished.
        tries: number of workers that died at a task, by task number.
    """

    def __init__(self, tasks: Iterable[Task], max_ahead: int | None = None) -> None:
        self.waiting, self.max_ahead = enumerate(tasks), max_ahead
        self.retries: list[tuple[int, Task]] = []
        self.started = 0
        self.unfinished: set[int] = set()
        self.tries: Counter[int] = Counter()

    def take(self) -> tuple[int, Task] | None:
        """Take the next task as `(number, task)`, first the tasks that were put back. Returns None if none may start.

        No task may start if none is left, or if the oldest unfinished task is `max_ahead` tasks behind.
        """
        if self.retries:
            return self.retries.pop()
        if self.max_ahead is not None and self.unfinished and self.started - min(self.unfinished) >= self.max_ahead:
            return None

        numbered_task = next(self.waiting, None)
        if numbered_task is not None:
            self.started += 1
            self.unfinished.add(numbered_task[0])

        return numbered_task

    def finish(self, number: int) -> None:
        """Mark the task with this number as finished."""
        self.unfinished.discard(number)

    def put_back(self, number: int, task: Task, cause: str) -> None:
        """Put a task whose worker died back at the head of the queue.

        Raise `EngineError` instead if `MAX_TRIES` workers died at the task.

        Args:
            number: number of the task.
            task: the task.
            cause: cause of the worker's death, for messages.
        """
        self.tries[number] += 1
        # If several workers die at a task, the task is the cause, such as a text that exhausts memory.
        if self.tries[number] == MAX_TRIES:
            raise EngineError(
                f"{MAX_TRIES} workers died at {task.name}, the last of: {cause}. If memory ran out, use fewer workers "
                "(--workers) or machines with more memory"
            )

        self.retries.append((number, task))


POLL_SECONDS = 0.5
"""Seconds between two checks of the workers."""

START_SECONDS = 300.0
"""Seconds within which at least one worker must be ready; a node may have to load a large model."""

OUT_OF_MEMORY = "out of memory"
"""Phrase in messages of torch, the system and Ray's memory monitor when memory runs out."""

MORE_MEMORY = "use fewer workers (--workers) or machines with more memory"
"""Advice in messages when memory runs out."""


class Pool:
    """Pool of workers. Creating the pool starts all workers, which are used when they become ready.

    Args:
        start: starts a worker and returns its handle, without waiting.
        introduce: asks a worker to introduce itself and returns a reference to the answer, without waiting.
        accept: raises `EngineError` for a worker that cannot be used.
        count: number of workers.

    Attributes:
        starting: handles of workers that have not introduced themselves yet, by reference.
        ready: introductions of the usable workers, by handle.
        failed_starts: number of workers that died while starting.
        last_ready: monotonic time at which a worker was last ready.
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
        worker = self.start()
        self.starting[self.introduce(worker)] = worker

    def run_tasks(
        self,
        tasks: Iterable[Task],
        max_ahead: int | None = None,
        on_wait: Callable[[list[Task]], None] = lambda busy: None,
    ) -> Iterator[_TaskResult]:
        """Run tasks, and yield results or exceptions as they finish. Dead workers are replaced. Repeated deaths raise.

        The task of a worker that dies is run again, up to `MAX_TRIES` times.

        Args:
            tasks: tasks, taken from the iterable in order when a worker is idle.
            max_ahead: maximum number of started tasks from the oldest unfinished task on, including that task; None for
                no limit.
            on_wait: called with the running tasks, about twice a second. An exception of this function ends the run.

        Raises:
            EngineError: if no worker becomes ready, a worker differs from this process, or several workers die at the
                same task.
        """
        import ray

        queue, idle = TaskQueue(tasks, max_ahead), list(self.ready)
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
                    done = _TaskResult(number, task, ray.get(reference))
                except ray.exceptions.RayTaskError as error:
                    done = _TaskResult(number, task, error=_worker_exception(error, task))
                except ray.exceptions.RayError as error:
                    # The worker died, not the task: another worker takes it, up to MAX_TRIES times.
                    self._replace(worker)
                    queue.put_back(number, task, _explain_error(error))
                    continue

                queue.finish(number)
                idle.append(worker)
                yield done

            self._check_ready_worker()

    def _admit(self, reference: Any) -> list[Any]:
        """Return a started worker in a list as ready. If it died, start another and return []. Repeated deaths raise.

        Raises:
            EngineError: if the worker cannot be used, or `MAX_TRIES` workers have died while starting.
        """
        import ray

        worker = self.starting.pop(reference)
        try:
            introduction = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise EngineError(f"a worker cannot start: {_explain_error(error.cause or error)}") from error
        except ray.exceptions.RayError as error:
            # If a module is missing for one worker, it is missing for all: another start would fail too.
            self.failed_starts += 1
            if self.failed_starts == MAX_TRIES or "No module named" in str(error):
                raise EngineError(f"workers die while starting: {_explain_error(error)}") from error
            self._start_worker()
            return []

        self.accept(introduction)
        self.ready[worker] = introduction
        return [worker]

    def _replace(self, worker: Any) -> None:
        import ray

        del self.ready[worker]
        ray.kill(worker)  # the worker may be alive, and only unreachable
        self.last_ready = time.monotonic()
        self._start_worker()

    def _check_ready_worker(self) -> None:
        """Set `last_ready` if a worker is ready. Raise `EngineError` if none has been ready for `START_SECONDS`."""
        if self.ready:
            self.last_ready = time.monotonic()
        elif time.monotonic() - self.last_ready > START_SECONDS:
            raise EngineError(
                f"none of {self.count} workers was ready within {START_SECONDS:.0f} s: Ray has no free cores for them "
                "(see ray status), or their nodes cannot load the encoder"
            )

    def close(self) -> None:
        """Kill all workers. Errors are ignored."""
        import ray

        for worker in [*self.ready, *self.starting.values()]:
            with suppress(Exception):  # a cluster that is gone has ended its workers already
                ray.kill(worker)


def _worker_exception(error: Any, task: Task) -> Exception:
    """Unwrap the exception that a worker's method raised from Ray's error.

    If the worker ran out of memory, return an `EngineError` with advice instead.
    """
    cause: Exception = error.cause or error
    if isinstance(cause, MemoryError) or "can't allocate memory" in str(cause) or OUT_OF_MEMORY in str(cause):
        return EngineError(f"a worker ran out of memory at {task.name}: {MORE_MEMORY}")
    return cause


def _explain_error(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if missing := next((line for line in lines if "No module named" in line), None):
        return f"{missing.partition(': ')[2] or missing}: every node needs the same installation of Lathe as this one"
    if OUT_OF_MEMORY in str(error):  # Ray's last line is a link to its manual
        return f"out of memory; {MORE_MEMORY}"
    return lines[-1] if lines else type(error).__name__


class ShardTasks:
    """The tasks that encode the unfinished shards of a run, and their outcomes.

    A task encodes a single shard of a local file, or all shards of a remote file. Creating the object writes a token to
    the run's folder.

    Args:
        run: the shards, their folders and the encoder.
        positions: position of each shard at the start.

    Attributes:
        token: the token.
        shards: unfinished shards by folder; files with the same name and content share a folder.
        damaged: reasons why files are damaged, by file name. Further shards of these files are skipped.
    """

    def __init__(self, run: EncodingRun, positions: Mapping[Shard, Position]) -> None:
        self.run = run
        self.token = Token.write(run.root)
        self.damaged: dict[str, str] = {}
        self.shards: dict[Path, list[Shard]] = {}
        for shard in run.plan.shards:
            if positions[shard].rows < shard.rows:
                self.shards.setdefault(run.folders[shard].absolute(), []).append(shard)

    def __iter__(self) -> Iterator[Task]:
        """Yield the tasks that encode the unfinished shards, file by file. Files in `damaged` are skipped."""
        for file, folders in groupby(self.shards, lambda folder: self.shards[folder][0].file):
            of_file = list(folders)
            # All shards of a remote file are one task, so that the file is downloaded once.
            for of_task in [of_file] if is_remote(file) or is_hub(file) else [[folder] for folder in of_file]:
                if self.run.source.format_file_name(file) not in self.damaged:
                    yield self._build_task(file, of_task)

    def _build_task(self, file: str, folders: list[Path]) -> Task:
        location = str(Path(file).absolute()) if is_path(file) else file
        shards = [replace(self.shards[folder][0], file=location) for folder in folders]
        name = f"{self.run.source.format_file_name(file)}, rows {shards[0].start:,} to {shards[-1].stop:,}"
        return Task(name, "encode", (shards, self.run.source.field, folders, self.token))

    def report_progress(self, tasks: Iterable[Task], report: Report) -> None:
        """Read from the shards' folders how many rows of the tasks are done, and call `report` for every shard."""
        for task in tasks:
            for folder in _list_folders(task):
                for shard in self.shards[folder]:
                    report(shard, read_position(folder).rows)

    def record_outcome(self, done: _TaskResult, report: Report) -> None:
        """Report the rows of a finished task. If the task failed, raise its error, or record a damaged file.

        Args:
            done: the finished task.
            report: called with every shard of the task and its rows done.

        Raises:
            SourceError: for a damaged file, unless the source skips damaged files.
            Exception: any other error of the task.
        """
        if isinstance(done.error, SourceError):
            file = self.shards[_list_folders(done.task)[0]][0].file
            self.run.source.record_or_raise(file, done.error, self.damaged)
        elif done.error is not None:
            raise done.error
        else:
            self.report_progress([done.task], report)


def _list_folders(task: Task) -> list[Path]:
    folders: list[Path] = task.arguments[2]
    return folders
