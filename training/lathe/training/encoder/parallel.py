"""Parallel batches, each on one core: faster than one batch on all cores, most of all while other programs run.

A batch of a small model is over in milliseconds, and cores that share each of its operations spend most of that time
waiting for one another.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def prefetch(items: Iterable[T]) -> Generator[T, None, None]:
    """Yield items in order, each made in a thread while the caller works on the one before.

    An error of the items' own is raised when its item is due.
    """
    following = ((item,) for item in items)
    with ThreadPoolExecutor(1, "prefetch") as pool:
        pending = pool.submit(next, following, None)
        while (made := pending.result()) is not None:
            pending = pool.submit(next, following, None)
            yield made[0]


def map_in_threads(work: Callable[[T], R], items: Iterable[T]) -> Generator[tuple[T, R], None, None]:
    """Apply a function to items in as many threads as torch uses, and yield each item with its result, in order.

    Meanwhile torch computes on one core in each thread, including this one; the end restores the setting. A single item
    gets all cores, as does every item if torch uses one thread only. Items are taken as threads become free. An error
    of the function is raised when its item is due, after the items that have begun are finished.

    Args:
        work: function that may run in several threads at once.
        items: arguments of it.
    """
    threads = torch.get_num_threads()
    following = iter(items)
    beginning = list(islice(following, 2))
    if threads == 1 or len(beginning) < 2:
        for item in chain(beginning, following):
            yield item, work(item)
        return

    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads, "encode", torch.set_num_threads, (1,)) as pool:
            pending: deque[tuple[T, Future[R]]] = deque()
            for item in chain(beginning, following):
                pending.append((item, pool.submit(work, item)))
                if len(pending) > threads:  # one more than threads is queued, so that no thread is idle
                    finished, result = pending.popleft()
                    yield finished, result.result()
            for finished, result in pending:
                yield finished, result.result()
    finally:
        torch.set_num_threads(threads)
