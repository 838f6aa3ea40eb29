"""Measure the shipped weights where the encoder changes, a graph is searched, queries are short or a decoder encodes.

    python -m research.scores.changes --data FOLDER --encoders FOLDER --work FOLDER --out research/results

The weights were learnt from none of the data sets. Half of the queries are the log, on which the model is fitted, and
the others are searched. Only the cutoff for a precision is chosen by judgements, which are those of the log.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import product
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.codes.data import EncodedData, make_data_parser
from benchmarks.report import markdown_table, write_report
from research.scores.data import SET_ASIDE, SIZES, encode_search, list_encoders, read_texts
from research.scores.measure import HALVINGS, Array, Collection
from research.scores.outside import SIZES as SWITCH_SIZES
from research.scores.outside import measure

ENCODERS = ("MiniLM", "e5-small", "WordLlama")
DECODER = "Gemma 3"

PRECISION, MIN_ANSWERED = 0.9, 10
"""Precision that a cutoff is chosen for, and the minimum number of judged queries that it answers."""

RESAMPLES = 1000

SHORT_SETS, SHORT_WORDS = ("code/cosqa", "code/nl2bash", "general/quora_pairs"), 4
"""Data sets with more than a hundred queries of up to four words, which alone are taken."""

GRAPH_SETS = ("code/cosqa", "general/quora_pairs")
"""Data sets whose queries have so few answers that a search with ef = 16 still has ten hits when they are hidden."""

GRAPH_DOCUMENTS = {"MiniLM": SWITCH_SIZES[0], "WordLlama": 12_000}
"""Maximum number of documents in a graph, by encoder."""

LINKS, EFS = 16, (16, 32, 64, 200)
"""Links of a row in a graph, and numbers of candidates of a search."""


def choose_precise(scores: Array, right: NDArray[np.bool_]) -> float:
    """Return the lowest score from which on nine of ten hits are right, or inf if there is none."""
    order = np.argsort(-scores)
    counts = np.arange(1, len(order) + 1)
    precise = np.flatnonzero((right[order].cumsum() >= PRECISION * counts) & (counts >= MIN_ANSWERED))
    return float(scores[order[precise[-1]]]) if len(precise) else np.inf


def choose_fifth(scores: Array, right: NDArray[np.bool_]) -> float:
    """Return the score from which on a fifth of the queries are answered."""
    return float(np.quantile(scores, 0.8))


GOALS = {"nine of ten right": choose_precise, "a fifth answered": choose_fifth}
"""What a cutoff is chosen for on the old encoder."""


def switch_encoders(collections: dict[str, Collection], chosen: Counter[str]) -> dict[tuple[str, ...], Array]:
    """Choose cutoffs on each encoder, and search with all encoders, in the halvings in which both cutoffs exist.

    Args:
        collections: a data set, by encoder.
        chosen: counts of the cutoffs that exist by goal and score, which are added to.

    Returns:
        By goal, kind of cutoff, old and new encoder, how often each query was searched, answered, and answered rightly,
        `(q, 3)`. The kind "share" is the cosine above which the new encoder answers as many queries of the log as the
        old one did.
    """
    count = len(collections[ENCODERS[0]].queries)
    tables: dict[tuple[str, ...], Array] = defaultdict(lambda: np.zeros((count, 3)))
    for seed in range(HALVINGS):
        order = np.random.default_rng(HALVINGS + seed).permutation(count)
        log, searched = order[: count // 2], order[count // 2 :]
        right, cosines, probabilities = {}, {}, {}
        for encoder, collection in collections.items():
            halving = collection.halve(seed)
            searches, model = halving.searches["queries"], collection.model
            model.kind = "queries"
            right[encoder], cosines[encoder] = halving.right, np.asarray(searches.scores[:, 0], np.float64)
            probabilities[encoder] = model.fit(searches.select(log)).predict_proba(searches)[:, 0]
        for old, (goal, choose) in product(collections, GOALS.items()):
            cosine, probability = (choose(found[old][log], right[old][log]) for found in (cosines, probabilities))
            chosen.update({f"{goal}, cosine": cosine < np.inf, f"{goal}, probability": probability < np.inf})
            if max(cosine, probability) == np.inf:
                continue
            share = np.mean(cosines[old][log] >= cosine)
            for new in collections:
                for kind, answered in (
                    ("cosine", cosines[new] >= cosine),
                    ("share", cosines[new] >= np.quantile(cosines[new][log], 1 - share)),
                    ("probability", probabilities[new] >= probability),
                ):
                    found = np.stack([np.ones_like(answered), answered, answered & right[new]], 1)
                    tables[goal, kind, old, new][searched] += found[searched]
    return dict(tables)


def estimate(table: Array) -> dict[str, Any]:
    """Return the share of queries that are answered and the precision, with 95 % intervals that resample queries.

    The precision is None if no query is answered.
    """
    count = len(table)
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), RESAMPLES)
    searched, answered, right = (np.vstack([np.ones((1, count)), draws]) @ table).T

    def bound(counts: Array, of: Array) -> list[float]:
        with np.errstate(invalid="ignore"):
            shares = counts / of
        return [float(shares[0]), *np.nanquantile(shares[1:], (0.025, 0.975)).tolist()]

    precision = bound(right, answered) if answered[0] else None
    return {"searches": int(searched[0]), "answered": bound(answered, searched), "precision": precision}


def search_graph(collection: Collection, ef: int) -> float:
    """Let a collection find what an HNSW graph finds, and return the recall of the first ten hits."""
    exact = np.argsort(-collection.cosines, axis=1)[:, :10]
    graph = faiss.IndexHNSWFlat(collection.documents.shape[1], LINKS, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efSearch = ef
    graph.add(collection.documents)
    _, collection.candidates = graph.search(collection.queries, collection.candidates.shape[1])
    found = collection.candidates[:, :10]
    return float((exact[:, :, None] == found[:, None]).any(2).mean())


def measure_changes(data: EncodedData) -> Iterator[dict[str, Any]]:
    """Yield the figures of all changes but that of the encoder, of one data set at a time."""
    encoder = data.encoder.name

    def read(name: str, documents: int, queries: int, max_words: float = np.inf) -> Collection:
        return Collection(encode_search(data, read_texts(data.data, name, documents, queries, max_words)))

    def describe(change: str, collection: Collection) -> dict[str, Any]:
        print(encoder, collection.search.name, change, file=sys.stderr)
        found = {"change": change, "encoder": encoder, "name": collection.search.name}
        return found | {"queries": len(collection.queries), "scores": measure(collection)}

    if encoder == DECODER:
        yield from (describe("a decoder", read(name, *SIZES[encoder])) for name in SET_ASIDE)
        return
    for name in SHORT_SETS:
        yield describe("all queries", read(name, *SWITCH_SIZES))
        yield describe("short queries", read(name, *SWITCH_SIZES, SHORT_WORDS))
    for name in GRAPH_SETS if encoder in GRAPH_DOCUMENTS else ():
        collection = read(name, GRAPH_DOCUMENTS[encoder], SWITCH_SIZES[1])
        yield describe("exact", collection)
        for ef in EFS:
            recall = search_graph(collection, ef)
            yield describe(f"graph, ef = {ef}", collection) | {"recall": recall}


def main() -> None:
    """Measure, print tables, write the raw figures."""
    arguments = make_data_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    encoders = list_encoders(arguments.encoders)
    names = arguments.encoder or [name for name in (*ENCODERS, DECODER) if name in encoders]
    data = {name: EncodedData(arguments.data, arguments.work, encoders[name]) for name in names}
    changes = [figures for each in data.values() for figures in measure_changes(each)]

    tables: dict[str, dict[str, Array]] = defaultdict(dict)
    chosen: dict[str, Counter[str]] = {name: Counter() for name in SET_ASIDE}
    for name in SET_ASIDE:
        texts = read_texts(arguments.data, name, *SWITCH_SIZES)
        collections = {encoder: Collection(encode_search(data[encoder], texts)) for encoder in ENCODERS}
        for (goal, kind, *change), table in switch_encoders(collections, chosen[name]).items():
            tables[f"{goal}, {kind}, {' → '.join(change)}"][name] = table
    switches = {
        key: {"all": estimate(np.concatenate([*sets.values()]))} | {name: estimate(sets[name]) for name in sets}
        for key, sets in tables.items()
    }

    def show(interval: list[float] | None) -> str:
        return "{:.0%} ({:.0%} to {:.0%})".format(*interval) if interval else "–"

    print(
        markdown_table(
            ["cutoff", "searches", "precision", "answered"],
            [
                [key, f"{sets['all']['searches']}", *(show(sets["all"][f]) for f in ("precision", "answered"))]
                for key, sets in switches.items()
            ],
        )
    )
    means = defaultdict(list)
    for row in changes:
        for score, figures in row["scores"].items():
            means[row["change"], row["encoder"], score].append([*figures, row.get("recall", np.nan)])
    print(
        markdown_table(
            ["change", "encoder", "score", "AUROC", "ECE", "AUROC of others", "recall"],
            [[*key, *(f"{value:.3f}" for value in np.mean(figures, axis=0))] for key, figures in means.items()],
        )
    )
    figures = {"chosen": chosen, "switches": switches, "changes": changes}
    print("raw figures:", write_report(arguments.out, "scores-changes", figures), file=sys.stderr)


if __name__ == "__main__":
    main()
