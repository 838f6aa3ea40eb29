"""Compares a bag of words with exact counts with the hashed one of the other experiments, on real tasks.

    python -m research.evidence.bag_of_words --suite FOLDER --limit 300

The hashed bag has 4,096 dimensions with signs, so that words collide. The exact one has a dimension for each word of a
task's texts. Both count the same words and are normalized.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import CountVectorizer

from benchmarks.report import markdown_table, parser, write_report
from lathe.training.comparison import Interval
from lathe.training.evaluation.model import Collector, list_texts
from lathe.training.evaluation.suites import Entry, open_suite
from lathe.training.evaluation.worker import load_task, measure, prepare_process
from lathe.training.reporting.text import format_interval
from research.encoders import BAG_OF_WORDS, BagOfWords
from research.paper_findings.statistics import bootstrap

Encode = Callable[[list[str]], NDArray[np.float32]]
"""Function that encodes texts as unit vectors `(n, d)`."""


class CountingModel(Collector):
    """mteb model that encodes texts by a function of the texts alone."""

    def __init__(self, function: Encode) -> None:
        super().__init__({})
        self.function = function

    def encode(self, inputs: Iterable[Mapping[str, Any]], **_: Any) -> NDArray[np.float32]:
        """Return the vectors `(n, d)` of the texts."""
        return self.function(list_texts(inputs))


def main() -> None:
    """Score both bags on every English task, print tables, write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--suite", action="append", required=True, help="a folder of data sets")
    options.add_argument("--limit", type=int, default=300)
    arguments = options.parse_args()
    stderr = sys.stderr
    prepare_process()
    found: dict[str, Any] = {}
    for written in arguments.suite:
        suite = open_suite(written)
        scores: dict[str, dict[str, Any]] = {}
        for entry in (entry for entry in suite.entries if entry.language == "en"):
            print(entry.name, file=stderr, flush=True)
            scores[entry.name] = score_bags(replace(entry, limit=arguments.limit))
        found[suite.title] = {"scores": scores, "summary": summarize(scores)}
    print(build_table({title: one["summary"] for title, one in found.items()}))
    write_report(arguments.out, "evidence-bag-of-words", {"limit": arguments.limit} | found)


def score_bags(entry: Entry) -> dict[str, Any]:
    """Return a task's type, the scores of both bags, and the number of distinct words of its texts."""
    task, _ = load_task(entry)
    collector = Collector()
    measure(collector, task)
    exact = count_exactly([text for _, text in collector.asked])
    hashed = BagOfWords()
    encoders: dict[str, Encode] = {
        "hashed": lambda texts: hashed.encode(texts).vectors,
        "exact": exact,
    }
    found = {name: measure(CountingModel(encode), task).score for name, encode in encoders.items()}
    return {"type": task.metadata.type, "words": exact(["a"]).shape[1]} | found


def count_exactly(texts: list[str]) -> Encode:
    """Return a function that counts the words of some texts without collisions.

    Zero for a text without a word.
    """
    vectorizer = CountVectorizer(dtype=np.float32).fit(texts)

    def encode(some: list[str]) -> NDArray[np.float32]:
        """Return the normalized counts `(n, words)`."""
        counts = vectorizer.transform(some).toarray()
        lengths = np.linalg.norm(counts, axis=1, keepdims=True)
        return np.asarray(np.divide(counts, lengths, out=np.zeros_like(counts), where=lengths > 0), np.float32)

    return encode


def summarize(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return both mean scores and the difference, exact less hashed, by type of task and over all, with intervals."""
    kinds = dict.fromkeys(one["type"] for one in scores.values())
    groups = {kind: [one for one in scores.values() if one["type"] == kind] for kind in kinds}
    found = {}
    for name, some in (groups | {"all tasks": list(scores.values())}).items():
        exact, hashed = (np.array([one[bag] for one in some]) for bag in ("exact", "hashed"))
        difference = bootstrap(100 * (exact - hashed))
        found[name] = {
            "tasks": len(some),
            "exact": float(exact.mean()),
            "hashed": float(hashed.mean()),
            "difference": {"value": difference.value, "low": difference.low, "high": difference.high},
        }
    return found


def build_table(summaries: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Build the table of mean scores and differences, by suite and type of task."""
    rows = [
        [title, kind, str(one["tasks"]), f"{one['hashed']:.3f}", f"{one['exact']:.3f}"]
        + [format_interval(Interval(**one["difference"]), "+.1f")]
        for title, kinds in summaries.items()
        for kind, one in kinds.items()
    ]
    header = ["suite", "type", "tasks", f"{BAG_OF_WORDS}, hashed", "exact counts", "difference, points"]
    return markdown_table(header, rows)


if __name__ == "__main__":
    main()
