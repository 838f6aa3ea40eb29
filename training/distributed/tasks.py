"""What workers are told to do, and in which order it is handed out."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from training.errors import EngineError

TRIES = 3
"""Workers that may die at a task before it is taken for the cause."""


@dataclass(frozen=True)
class Task:
    """A call of a worker's method.

    Attributes:
        name: what it is about, for messages.
        method: of `Worker`.
        arguments: of the method.
    """

    name: str
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Done:
    """A task that a worker finished, or that raised there.

    Attributes:
        number: of the task, in the order of all.
        task: itself.
        result: what the method gave.
        error: what it raised; None if it gave a result.
    """

    number: int
    task: Task
    result: Any = None
    error: Exception | None = None


class Queue:
    """Tasks in order, taken from their iterator when a worker is free; one that a worker left comes first again.

    Args:
        tasks: may be lazy.
        lead: how many tasks may be begun from the oldest that is not finished, itself included; None for any number.
    """

    def __init__(self, tasks: Iterable[Task], lead: int | None = None) -> None:
        self.coming, self.lead = enumerate(tasks), lead
        self.again: list[tuple[int, Task]] = []
        self.begun = 0
        self.unfinished: set[int] = set()
        self.tries: Counter[int] = Counter()

    def take(self) -> tuple[int, Task] | None:
        """The next task and its number; None if there is none at the moment."""
        if self.again:
            return self.again.pop()
        if self.lead is not None and self.unfinished and self.begun - min(self.unfinished) >= self.lead:
            return None
        found = next(self.coming, None)
        if found is not None:
            self.begun += 1
            self.unfinished.add(found[0])
        return found

    def finish(self, number: int) -> None:
        """Note that a task is done."""
        self.unfinished.discard(number)

    def put_back(self, number: int, task: Task, why: str) -> None:
        """Let another worker try what one died at.

        Raises:
            EngineError: if too many have.
        """
        self.tries[number] += 1
        if self.tries[number] == TRIES:
            raise EngineError(
                f"{TRIES} workers died at {task.name}, the last one so: {why}. If their memory ran out, "
                "take fewer workers (--workers) or machines with more of it"
            )
        self.again.append((number, task))
