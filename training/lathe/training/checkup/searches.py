"""Loss of a search's hits, divided among the graph, the quantizer and rows that are not their texts' vectors.

The same queries are asked in the store's own way, by comparing all rows in the form that the index stores, and by
comparing all full vectors. What each step loses of recall@10 is the part of that step. A row whose vector is not its
text's is lost where a search with its text's vector does not find it among the ten nearest.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lathe.training.checkup.findings import Finding, Severity, format_recall
from lathe.training.checkup.spaces import Again
from lathe.training.checkup.store import Hits, Store
from lathe.training.comparison import Interval, compare, mean_interval
from lathe.transforms.vectors import FloatArray

K = 10
"""Number of hits of which the recall is measured."""
TOLERANCE = 1e-5
"""Relative difference of scores up to which hits count as equally near: copies of a row replace each other."""
ENOUGH = 0.8
"""Share of a loss that a cure must bring back to be advised."""
MULTIPLES = (2, 4, 8)
"""Multiples of ten candidates that are ranked again."""
SMALL_LOSS, LARGE_LOSS = 0.01, 0.05
"""Loss of recall by approximate search from which on a cure is advised, and from which on it must be fixed."""


@dataclass(frozen=True)
class Effort:
    """Recall and time of a search at one setting of the index.

    Attributes:
        effort: value of the setting.
        recall: recall@10 of the exact search of the same form.
        seconds: mean seconds of a query.
    """

    effort: int
    recall: Interval
    seconds: float


@dataclass(frozen=True)
class SearchCheck:
    """Recall@10 of a store's searches and what each cause takes from it.

    Attributes:
        queries: number of queries asked.
        recall: recall@10 of the store's own way, less what rows lose that are not their texts' vectors.
        losses: loss of recall@10 by cause: `graph` (or lists: approximate search), `quantizer`, and causes of rows.
        efforts: recall and time at the present effort, and at others if the graph loses hits.
        rebuilt: recall of the exact search of the same form by an index that was built again, at the present effort;
            None if another effort brings the loss back, or the store builds none.
        ranked_again: recall@10 of comparing all rows, if this many times ten of them are ranked again by the full
            vectors; empty without a quantizer that loses hits.
    """

    queries: int
    recall: Interval
    losses: dict[str, Interval]
    efforts: Sequence[Effort]
    rebuilt: Interval | None
    ranked_again: dict[int, Interval]


def check_searches(store: Store, queries: FloatArray, again: Again | None) -> SearchCheck:
    """Ask a store queries in its own way and exactly, and divide the loss of recall@10 among its causes.

    Args:
        store: the store.
        queries: queries `(q, d)`, as the store takes them, at least one.
        again: rows whose texts were encoded again, or None.
    """
    exact = store.search_exactly(queries, K)
    found = store.search(queries, K)
    reached = _count_reached(found, exact)
    recall = mean_interval(reached)
    losses = {"graph": mean_interval(1 - reached)}
    ranked_again: dict[int, Interval] = {}
    if store.quantizer is not None:
        full = store.search_exactly(queries, K, full=True)
        kept, found_full = _share_ids(exact, full), _share_ids(found, full)
        recall = mean_interval(found_full)
        losses = {"graph": compare(kept, found_full), "quantizer": mean_interval(1 - kept)}
        if losses["quantizer"].value >= SMALL_LOSS:
            wide = store.search_exactly(queries, K * MULTIPLES[-1])
            ranked_again = {multiple: mean_interval(_share_ids(wide, full, multiple * K)) for multiple in MULTIPLES}

    efforts = [Effort(effort, mean_interval(reached), found.seconds) for effort in store.efforts[:1]]
    if losses["graph"].value >= SMALL_LOSS:
        for effort in store.efforts[1:]:
            more = store.search(queries, K, effort)
            efforts.append(Effort(effort, mean_interval(_count_reached(more, exact)), more.seconds))

    rebuilt = None
    back = max(effort.recall.value for effort in efforts) - efforts[0].recall.value if efforts else 0.0
    if len(efforts) > 1 and back < ENOUGH * losses["graph"].value and (hits := store.search_rebuilt(queries, K)):
        rebuilt = mean_interval(_count_reached(hits, exact))

    # A row that the search does not find anyway is not lost a second time by its vector.
    if again is not None and (row_losses := _measure_row_losses(store, again, recall.value)):
        losses |= row_losses
        recall = _subtract(recall, row_losses.values())
    return SearchCheck(len(queries), recall, losses, efforts, rebuilt, ranked_again)


def _measure_row_losses(store: Store, again: Again, found: float) -> dict[str, Interval]:
    """Return by cause the share of rows that an exact search with the text's new vector misses, {} without causes.

    The shares are multiplied by `found`, the share of rows that the search finds if their vectors are right.
    """
    if not again.causes:
        return {}
    asked = np.flatnonzero(np.any(list(again.causes.values()), axis=0))
    hits = store.search_exactly(again.fresh[asked], K)
    lost = np.zeros(len(again.ids))
    lost[asked] = [found * (again.ids[row] not in ids) for row, ids in zip(asked, hits.ids, strict=True)]
    return {cause: mean_interval(lost * mask) for cause, mask in again.causes.items()}


def _subtract(recall: Interval, losses: Iterable[Interval]) -> Interval:
    """Return a recall less losses that were measured apart from it, whose errors are independent."""
    parts = [recall, *losses]
    value = max(0.0, recall.value - sum(loss.value for loss in parts[1:]))
    reach = float(np.sqrt(sum((part.reach or 0) ** 2 for part in parts)))
    return Interval(value, max(0.0, value - reach), min(1.0, value + reach)) if reach else Interval(value, None, None)


def _count_reached(found: Hits, exact: Hits) -> NDArray[np.float64]:
    """Return for each query the share of its hits that are as near as the tenth of the exact search, `(q,)`."""
    shares = np.ones(len(exact.scores))
    for row, (scores, best) in enumerate(zip(found.scores, exact.scores, strict=True)):
        if len(best):
            least = best[-1] - TOLERANCE * max(1.0, abs(best[-1]))
            shares[row] = min(1.0, float((scores >= least).sum()) / len(best))
    return shares


def _share_ids(found: Hits, wanted: Hits, count: int = K) -> NDArray[np.float64]:
    """Return for each query the share of the wanted hits that are among the first hits found, `(q,)`."""
    pairs = zip(found.ids, wanted.ids, strict=True)
    return np.array([len({*ids[:count]} & {*full}) / max(len(full), 1) for ids, full in pairs])


def describe_searches(check: SearchCheck, store: Store) -> Iterator[Finding]:
    """Yield a finding for each cause of a loss of recall, with the cure that was measured."""
    graph, quantizer = check.losses["graph"], check.losses.get("quantizer")
    if graph.value >= SMALL_LOSS:
        sentence = f"Approximate search loses {format_recall(graph)} of recall@10."
        severity: Severity = "fix" if graph.value >= LARGE_LOSS else "note"
        yield Finding("graph", severity, sentence, graph, advice=_advise_effort(check, graph.value, store))
    if quantizer is not None:
        yield Finding(
            "quantizer",
            "note" if quantizer.value >= SMALL_LOSS else "fine",
            f"{store.quantizer} loses {format_recall(quantizer)} of recall@10.",
            quantizer,
            advice=_advise_ranking(check, quantizer.value),
        )


def _advise_effort(check: SearchCheck, loss: float, store: Store) -> str:
    """Return advice on the effort that brings most of the graph's loss back, with cost, or to build the index again."""
    name, (now, *others) = store.effort_name, check.efforts
    for effort in others:
        back = effort.recall.value - now.recall.value
        if back >= ENOUGH * loss:
            more = max(1000 * (effort.seconds - now.seconds), 0.0)
            return f"{name} {effort.effort} in place of {now.effort} brings {back:.2f} back for {more:.1f} ms a query."
    tried = f"no larger {name} of those tried, up to {check.efforts[-1].effort}, brings it back"
    if check.rebuilt is None:
        return f"Build the index again, with more links if it had few: {tried}. {store.cures.rebuild}".rstrip()
    back = check.rebuilt.value - now.recall.value
    if back >= ENOUGH * loss:
        return f"{store.cures.rebuild} brings {back:.2f} back: {tried}."
    return f"Build the index with more links: {tried}, and building it again as it is brings {max(back, 0):.2f} back."


def _advise_ranking(check: SearchCheck, loss: float) -> str:
    """Return a sentence on how many candidates to rank again for most of a quantizer's loss, '' if none was tried."""
    for multiple, recall in check.ranked_again.items():
        back = recall.value - (1 - loss)
        if back >= ENOUGH * loss:
            return f"Ranking {multiple * K} candidates again by the full vectors brings {back:.2f} back."
    if not check.ranked_again:
        return ""
    return f"Ranking {MULTIPLES[-1] * K} candidates again does not bring it back: store more bytes, see lathe advise."
