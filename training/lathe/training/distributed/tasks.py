"""Tasks of workers, their outcomes, and the queue that hands them out."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lathe.training.errors import EngineError

MAX_TRIES = 3
"""Number of workers that must die at a task before the task is considered the cause."""


@dataclass(frozen=True)
class Task:
    """Call of a worker's method.

    Attributes:
        name: description for messages.
        method: name of a method of `Worker`.
        arguments: arguments of the method.
    """

    name: str
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class TaskResult:
    """Finished task, with its result or error.

    Attributes:
        number: position of the task in the order of all tasks.
        task: the task.
        result: return value of the method.
        error: exception that the method raised; None if it returned.
    """

    number: int
    task: Task
    result: Any = None
    error: Exception | None = None


class TaskQueue:
    """Queue of tasks in order, taken from a lazy iterable.

    A task whose worker died comes first again.

    Args:
        tasks: the tasks; may be lazy.
        lead: maximum number of tasks started from the oldest unfinished one on, itself included; None for no limit.

    Attributes:
        coming: tasks not started, with their numbers.
        again: tasks whose worker died, with their numbers.
        begun: number of tasks started.
        unfinished: numbers of tasks started and not finished.
        tries: number of workers that died at a task, by task number.
    """

    def __init__(self, tasks: Iterable[Task], lead: int | None = None) -> None:
        self.coming, self.lead = enumerate(tasks), lead
        self.again: list[tuple[int, Task]] = []
        self.begun = 0
        self.unfinished: set[int] = set()
        self.tries: Counter[int] = Counter()

    def take(self) -> tuple[int, Task] | None:
        """Remove the next task from the queue, and return its number and the task. The result is None if no task is
        left, or if too many have been started since the oldest unfinished one.

        Tasks put back come first; `lead` is the number that may be started from the oldest unfinished one on.
        """
        if self.again:
            return self.again.pop()
        if self.lead is not None and self.unfinished and self.begun - min(self.unfinished) >= self.lead:
            return None

        numbered_task = next(self.coming, None)
        if numbered_task is not None:
            self.begun += 1
            self.unfinished.add(numbered_task[0])

        return numbered_task

    def finish(self, number: int) -> None:
        """Mark the task with this number as finished."""
        self.unfinished.discard(number)

    def put_back(self, number: int, task: Task, why: str) -> None:
        """Put a task back into the queue because its worker died. The next free worker gets it.

        Args:
            number: number of the task.
            task: the task.
            why: cause of the worker's death, for messages.

        Raises:
            EngineError: if this is the `MAX_TRIES`-th worker that died at the task.
        """
        self.tries[number] += 1
        # A task at which several workers die is to blame itself, such as by a text that exhausts memory.
        if self.tries[number] == MAX_TRIES:
            raise EngineError(
                f"{MAX_TRIES} workers died at {task.name}, the last one so: {why}. If their memory ran out, "
                "take fewer workers (--workers) or machines with more of it"
            )

        self.again.append((number, task))
