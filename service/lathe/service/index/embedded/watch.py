"""Recall of an index's searches while it serves, by canaries: stored rows with noise that are searched for.

The maintenance thread asks one canary at a time when it has nothing else to do. Each is searched in the graph and by
comparing all rows, and what the graph or the chain loses is kept, also over restarts. So is whether the row has copies,
and whether the graph finds it at all.
"""

import json
import math
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lathe.service.index.embedded.generation import Generation
from lathe.service.index.query import MANY_RESCORED, Query
from lathe.training.measures import blur_rows
from lathe.transforms.files import read_json_file, replace_synced

K = 10
"""Number of hits of which the recall is measured."""
PAUSE_SECONDS = 2.0
"""Minimum pause between two canaries: thirty a minute."""
PAUSE_SHARE = 50
"""Minimum pause, as a multiple of the time that the last canary took: at most 2 % of a core."""
KEPT = 1000
"""Number of canaries that the recall is the mean of."""
SAVE_EVERY = 20
"""Number of canaries between two writes of the file."""
BLOCK = 50
"""Number of canaries at each point of the history."""
ENOUGH = 100
"""Minimum number of canaries for a warning."""
MAX_LOSS = 0.05
"""Loss of recall@10 by the graph that is warned of, if the interval lies above."""
TOLERANCE = 1e-5
"""Relative difference of scores up to which hits count as equally near; absolute for scores below 1."""


CHECKUP = "checkup.json"
"""Name of the file in an index's folder with the result of its last checkup, which a job writes."""


class Canary(NamedTuple):
    """What one canary showed.

    Attributes:
        graph: loss of recall@10 by the graph.
        chain: loss of recall@10 by the chain; None without one, or where the index stores no originals.
        copied: whether another row has the same compact vector.
        unreachable: whether the graph does not find the row by the row's own vector.
    """

    graph: float
    chain: float | None
    copied: bool
    unreachable: bool


class RecallWatch:
    """What an index's last canaries showed.

    Attributes:
        canaries: the last `KEPT` canaries, the oldest first.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.graph: str | None = None
        self.canaries: deque[Canary] = deque(maxlen=KEPT)
        self.asked = 0
        self.next = time.monotonic() + PAUSE_SECONDS
        self.random = np.random.default_rng()
        with suppress(OSError, ValueError, KeyError, TypeError):  # there is none yet, or it is damaged
            kept = read_json_file(path)
            self.graph = str(kept["graph"])
            self.canaries.extend(
                Canary(float(graph), None if chain is None else float(chain), bool(copied), bool(unreachable))
                for graph, chain, copied, unreachable in kept["canaries"]
            )

    def ask_if_due(self, generation: Generation) -> None:
        """Search for a stored row, if the pause is over and the generation is large enough to search its graph."""
        begun = time.monotonic()
        if begun < self.next or generation.graph is None:
            return
        view = generation.rows.take_view()
        alive = np.flatnonzero(view.alive)
        if len(alive) <= max(generation.exact_rows, K):
            return
        graph = f"{generation.spec.space_id}/{generation.spec.generation}"
        if self.graph != graph:
            self.graph = graph
            self.canaries.clear()

        row = [self.random.choice(alive)]
        reduced = not generation.spec.has_originals
        vectors = generation.vector_format.decode(view.compact[row]) if reduced else view.originals[row]
        itself = Query(np.asarray(vectors, np.float32), K, reduced=reduced)
        query = replace(itself, vectors=blur_rows(itself.vectors, self.random))
        _, found, _ = generation.search(query)
        exact, nearest, _ = generation.search(replace(query, exact=True))
        sign = -1 if generation.spec.metric == "l2" else 1
        reached = sign * found[0] >= sign * nearest[0, -1] - _tolerance(nearest[0, -1])
        chain = None
        if not reduced and not generation.reducer.only_normalizes:
            full, _, _ = generation.search(replace(query, exact=True, rescoring=MANY_RESCORED))
            chain = 1 - len(np.intersect1d(exact[0], full[0])) / K
        copied, unreachable = _look_for_row(generation, itself, int(view.labels[row[0]]))
        self.canaries.append(Canary(1 - float(reached.mean()), chain, copied, unreachable))
        self.asked += 1
        if self.asked % SAVE_EVERY == 0:
            content = {"graph": self.graph, "canaries": list(self.canaries)}
            replace_synced(self.path, json.dumps(content).encode())
        took = time.monotonic() - begun
        self.next = time.monotonic() + max(PAUSE_SECONDS, PAUSE_SHARE * took)

    def describe(self) -> dict[str, Any] | None:
        """Return what the canaries show, or None before the first.

        Returns:
            `queries`, the number of canaries; `losses`, the loss of recall@10 by cause, and `rows`, the share of
                copied and of unreachable rows, each `[mean, low, high]` with the 95 % interval; `history`, the mean
                recall of each fifty canaries, the oldest first.
        """
        canaries = list(self.canaries)  # the maintenance thread may add one
        if not canaries:
            return None
        graph, chain, copied, unreachable = map(list, zip(*canaries, strict=True))
        losses = {"graph": graph, "chain": [loss for loss in chain if loss is not None]}
        recall = [1 - canary.graph - (canary.chain or 0) for canary in canaries]
        first = len(canaries) % BLOCK
        return {
            "queries": len(canaries),
            "losses": {cause: _estimate(values) for cause, values in losses.items() if values},
            "rows": {"copied": _estimate(copied), "unreachable": _estimate(unreachable)},
            "history": [float(np.mean(recall[at : at + BLOCK])) for at in range(first, len(recall), BLOCK)],
        }

    @property
    def excessive_loss(self) -> str | None:
        """What the graph loses, with its interval, if that is more than `MAX_LOSS` beyond chance, else None."""
        graph = [canary.graph for canary in list(self.canaries)]
        if len(graph) < ENOUGH:
            return None
        mean, low, high = _estimate(graph)
        return f"{mean:.2f} ({low:.2f} to {high:.2f})" if low > MAX_LOSS else None


def _look_for_row(generation: Generation, itself: Query, label: int) -> tuple[bool, bool]:
    """Search for a row by its own vector. Return whether the row has copies, and whether the graph does not find it."""
    labels, nearest, _ = generation.search(replace(itself, exact=True))
    # A row with ten copies or more may not be among its own ten nearest.
    score = nearest[0][labels[0] == label][0] if label in labels[0] else nearest[0, 0]
    found, scores, _ = generation.search(itself)
    copied = (np.abs(nearest[0] - score) <= _tolerance(score)).sum() > 1
    reached = label in found[0] or (np.abs(scores[0] - score) <= _tolerance(score)).any()
    return bool(copied), not reached


def _tolerance(score: np.float32) -> float:
    return TOLERANCE * max(1.0, abs(float(score)))


def read_checkup(folder: Path) -> dict[str, Any] | None:
    """Return the result of the last checkup of an index, or None if there is none that can be read."""
    with suppress(OSError, ValueError):
        result = read_json_file(folder / CHECKUP)
        return result if isinstance(result, dict) else None
    return None


def _estimate(values: list[float]) -> list[float]:
    mean, spread = float(np.mean(values)), float(np.std(values))
    reach = 1.96 * spread / math.sqrt(len(values))
    return [mean, max(mean - reach, 0.0), min(mean + reach, 1.0)]
