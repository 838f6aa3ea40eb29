"""Nodes of a graph: rows with equal compact vectors are one node, which stands for all of them.

As nodes of their own, copies fill one another's links, and no path leads to rows that are added after many of them.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.service.index.embedded.exact import SearchResult, empty_results, merge_results, rank_rows
from lathe.service.index.query import Mask

BLOCK_ROWS = 4096
"""Number of rows that are hashed at once."""
MIN_RECENT = 1024
"""Minimum number of recent hashes that are merged into the sorted ones."""
RECENT_SHARE = 1 / 16
"""Share of the sorted hashes above which recent ones are merged: merging takes time, entries of a dict take memory."""
RECENT_BYTES = 100
"""Memory of an entry in the dict of recent hashes, in bytes."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class _NodeRows:
    """Rows that each node of a graph stands for, at one moment. Nodes are numbered in the order of their first rows.

    A copy is a row that is not the first of its node.

    Attributes:
        assigned: number of rows that have a node. The graph may lack the last nodes.
        firsts_before: number of first rows before each copy `(c,)`, in the order of the copies' row numbers.
        nodes: node of each copy `(c,)`, ascending.
        rows: row number of each copy in the order of `nodes`, ascending within a node.
    """

    assigned: int
    firsts_before: Numbers
    nodes: Numbers
    rows: Numbers

    @property
    def count(self) -> int:
        """Number of nodes."""
        return self.assigned - len(self.rows)

    def find_first_rows(self, nodes: Numbers) -> Numbers:
        """Return the number of the first row of each node, and −1 for −1."""
        return nodes + np.searchsorted(self.firsts_before, nodes, "right") if len(self.rows) else nodes

    def count_covered(self, linked: int) -> int:
        """Return the number of rows before the first one whose node is not among the graph's `linked` nodes."""
        return self.assigned if linked >= self.count else int(self.find_first_rows(np.array([linked]))[0])

    def count_allowed(self, allowed: Mask) -> int:
        """Return the number of nodes with a row in the mask `(n,)` of allowed rows."""
        allowed_rows = int(np.count_nonzero(allowed[: self.assigned]))
        if not len(self.rows):
            return allowed_rows
        known = self.rows < len(allowed)
        nodes, rows = self.nodes[known], self.rows[known]
        nodes = nodes[allowed[rows]]
        distinct = nodes[np.diff(nodes, prepend=-1) > 0]
        # A node counts by its first row or, if that is not allowed, once for all its copies.
        return allowed_rows - len(nodes) + int(np.count_nonzero(~allowed[self.find_first_rows(distinct)]))

    def rank(
        self, nodes: Numbers, scores: NDArray[np.float32], allowed: Mask | None, upto: int, count: int
    ) -> SearchResult:
        """Return the numbers and scores, each `(q, count)`, of the best rows of the nodes that each query found.

        Args:
            nodes: nodes `(q, c)`, best first; −1 for none.
            scores: scores of the nodes, `(q, c)`.
            allowed: mask of the rows that may be returned; None for all.
            upto: number of the first row that may not be returned, like all after it.
            count: number of rows per query.
        """
        rows, row_scores = self.find_first_rows(nodes), scores
        if allowed is not None or self.assigned > upto:
            barred = rows >= upto
            if allowed is not None:
                barred |= ~allowed[np.minimum(rows, upto - 1)]
            rows, row_scores = np.where(barred, -1, rows), np.where(barred, np.float32(-np.inf), scores)

        best = rank_rows(rows, row_scores, count)
        if best[0].shape[1] < count:
            best = merge_results(best, empty_results(len(nodes), count), count)
        if not len(self.rows):
            return best

        starts, stops = (np.searchsorted(self.nodes, nodes, side) for side in ("left", "right"))
        for query in np.flatnonzero((starts < stops).any(axis=1)):
            copies = self._list_copies(starts[query], stops[query], scores[query], allowed, upto, count)
            firsts = best[0][query : query + 1], best[1][query : query + 1]
            best[0][query], best[1][query] = merge_results(firsts, copies, count)
        return best

    def _list_copies(
        self, starts: Numbers, stops: Numbers, scores: NDArray[np.float32], allowed: Mask | None, upto: int, count: int
    ) -> SearchResult:
        """Return those copies of one query's nodes that can be among its `count` best rows.

        Args:
            starts: position in `rows` where the copies of each node begin, for nodes in the order of their scores.
            stops: position where they end.
            scores: scores of the nodes.
            allowed: see `rank`.
            upto: see `rank`.
            count: see `rank`.

        Returns:
            Row numbers and scores, each `(1, c)`.
        """
        listed: list[Numbers] = []
        sizes = np.zeros(len(scores), np.int64)
        total, last = 0, np.inf
        for place in np.flatnonzero(starts < stops):
            if total >= count and scores[place] < last:
                break
            copies = self.rows[starts[place] : stops[place]]
            copies = copies[: np.searchsorted(copies, upto)]
            copies = (copies if allowed is None else copies[allowed[copies]])[:count]
            listed.append(copies)
            sizes[place], last = len(copies), scores[place]
            total += len(copies)
        return np.concatenate(listed)[None], np.repeat(scores, sizes)[None]


class GraphNodes:
    """Assignment of a generation's rows to the nodes of its graph, by the bytes of their compact vectors.

    One thread assigns nodes; any number may read `current` meanwhile.

    Attributes:
        current: rows of each node.
        hashes: hashes of the nodes' bytes, ascending, without the hashes of recent nodes.
        hashed: node of each of these hashes.
        recent: node of each hash that is not among `hashes` yet.
    """

    def __init__(self) -> None:
        none = np.empty(0, np.int64)
        self.current = _NodeRows(0, none, none, none)
        self.hashes = none
        self.hashed = none.astype(np.int32)
        self.recent: dict[int, int] = {}

    @property
    def bytes(self) -> int:
        """Memory of the assignment in bytes: about 18 for each node, and 24 for each copy."""
        return self.hashes.nbytes + self.hashed.nbytes + RECENT_BYTES * len(self.recent) + 3 * self.current.rows.nbytes

    def assign(self, compact: NDArray[Any], upto: int) -> None:
        """Assign a node to each of the first `upto` compact vectors `(n, b)` that has none, and update `current`."""
        for start in range(self.current.assigned, upto, BLOCK_ROWS):
            self._assign_block(compact, start, min(start + BLOCK_ROWS, upto))

    def _assign_block(self, compact: NDArray[Any], start: int, stop: int) -> None:
        """Assign nodes to the rows from `start`, the first without a node, to `stop` - 1."""
        block, known = compact[start:stop], self.current
        contents = block.view(np.dtype((np.void, block.strides[0]))).ravel().tolist()  # the bytes of each row
        hashes = [hash(content) for content in contents]
        firsts: list[int] = []  # rows of new nodes
        copies: list[tuple[int, int]] = []  # node and row

        for row, content, key, node in zip(range(start, stop), contents, hashes, self._find(hashes), strict=True):
            node = self.recent.get(key, node)
            if node < 0:
                self.recent[key] = known.count + len(firsts)
                firsts.append(row)
                continue
            first = firsts[node - known.count] if node >= known.count else known.find_first_rows(np.array([node]))[0]
            if compact[first].tobytes() == content:
                copies.append((node, row))
            else:  # another vector has this hash, and copies of this one will not find its node
                firsts.append(row)

        self.current = _add_copies(known, stop, np.array(copies, np.int64).reshape(-1, 2))
        if len(self.recent) > max(MIN_RECENT, RECENT_SHARE * len(self.hashes)):
            self._merge_recent()

    def _find(self, hashes: list[int]) -> list[int]:
        """Return the node of each hash, or −1 where it is not among `hashes`."""
        if not len(self.hashes):
            return [-1] * len(hashes)
        keys = np.array(hashes)
        places = np.minimum(np.searchsorted(self.hashes, keys), len(self.hashes) - 1)
        nodes: list[int] = np.where(self.hashes[places] == keys, self.hashed[places], -1).tolist()
        return nodes

    def _merge_recent(self) -> None:
        hashes, nodes = np.array(sorted(self.recent.items())).T
        places = np.searchsorted(self.hashes, hashes)
        self.hashes, self.hashed = np.insert(self.hashes, places, hashes), np.insert(self.hashed, places, nodes)
        self.recent = {}


def _add_copies(known: _NodeRows, assigned: int, copies: Numbers) -> _NodeRows:
    """Return `known` with more assigned rows, of which `copies` `(c, 2)`, node and row, are copies."""
    if not len(copies):
        return replace(known, assigned=assigned)
    firsts_before = copies[:, 1] - len(known.rows) - np.arange(len(copies))
    nodes, rows = copies[np.argsort(copies[:, 0], kind="stable")].T
    places = np.searchsorted(known.nodes, nodes, "right")
    return _NodeRows(
        assigned,
        np.append(known.firsts_before, firsts_before),
        np.insert(known.nodes, places, nodes),
        np.insert(known.rows, places, rows),
    )
