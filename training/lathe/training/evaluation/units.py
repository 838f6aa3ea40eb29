"""Values of single queries, texts or pairs, so that methods can be compared within one data set.

mteb returns one score for a data set. A difference of two scores needs an interval over what the data set consists of,
its units, and two methods are compared on the same ones. What is computed for a unit depends on the type of the task:

    Retrieval, Reranking   query   its own metric, from mteb (pytrec_eval)
    Classification         text    share of the ten classifiers that are right
    BitextMining           pair    F1 of its translation
    STS                    pair    jackknife of Spearman's ρ of the cosines
    PairClassification     pair    jackknife of the average precision
    Clustering             text    the ten samples of texts that mteb draws with replacement, as a bootstrap

The mean of the values is the score, for the last three up to a bias of order 1/n, and their variance divided by their
number is the sampling variance of the score. So the differences of two methods' values are tested alike for all types.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MAX_JACKKNIFE_GROUPS = 1000
"""Maximum number of groups of pairs that a jackknife leaves out one by one.

With at most as many pairs, a group is one pair. The metric is computed once for each group.
"""
TOLERANCE = 1e-4
"""Maximum difference between mteb's score and that of the values. mteb rounds scores to five decimals."""
TREC_METRICS = {"ndcg": "ndcg_cut", "map": "map_cut", "recall": "recall", "precision": "P", "hit_rate": "success"}
"""Names of pytrec_eval's metrics, by the first part of mteb's, such as ndcg of ndcg_at_10."""


@dataclass(frozen=True)
class UnitValues:
    """Values of a data set's units (queries, texts or pairs) under one method, and the score that follows from them.

    Attributes:
        score: score of the whole data set that follows from them.
        units: number of units.
        values: `(n,)`, in the order of the units; n is smaller than `units` if these are in groups.
    """

    score: float
    units: int
    values: Array


Record = Path | list[dict[str, dict[str, float]]]
"""What mteb computed for single units: the folder of its predictions, or of a search the metrics of each query."""


@contextmanager
def record_units(task: Any) -> Iterator[Record]:
    """Record what mteb computes for each query, text or pair of a task while the block runs.

    For a search, a list is yielded that gets the metrics of each query, once for each split. For other tasks a
    temporary folder is yielded, into which mteb should write its predictions. The folder is deleted after the block.
    """
    from mteb.abstasks import AbsTaskRetrieval

    if not isinstance(task, AbsTaskRetrieval):
        with TemporaryDirectory(prefix="lathe-") as folder:
            yield Path(folder)
        return

    by_query: list[dict[str, dict[str, float]]] = []
    original = task.task_specific_scores

    def record_queries(scores: dict[str, dict[str, float]], *arguments: Any, **options: Any) -> dict[str, float]:
        by_query.append(scores)
        return original(scores, *arguments, **options)

    task.task_specific_scores = record_queries  # type: ignore[method-assign]  # mteb calls it with all queries
    try:
        yield by_query
    finally:
        del task.task_specific_scores


def compute_units(task: Any, scores: Mapping[str, Any], record: Record) -> UnitValues | None:
    """Return the value of each query, text or pair that mteb's main score averages.

    Returns None if the task has no such values: for other types and metrics than those at the top of the module, for
    several splits or subsets, and if the values do not give mteb's score.

    Args:
        task: task of mteb, with its data.
        scores: mteb's scores, a list of those of each subset, by split.
        record: what was recorded.
    """
    (split, (subset_scores, *others)), *other_splits = scores.items()
    if others or other_splits:
        return None

    unit_values: UnitValues | None = None
    if isinstance(record, list):
        unit_values = _score_queries(task.metadata.main_score, record)
    elif compute := _BY_TYPE.get((task.metadata.type, task.metadata.main_score)):
        (subset,) = task.hf_subsets
        data = task.dataset[subset] if subset in task.dataset else task.dataset
        saved = json.loads((record / task.prediction_file_name).read_text())[subset][split]
        unit_values = compute(task, saved, data[split], subset_scores)

    # Values of another metric than mteb's score would give a wrong interval; without values there is none.
    if unit_values is None or abs(unit_values.score - float(subset_scores["main_score"])) > TOLERANCE:
        return None

    return unit_values


def _score_queries(metric: str, by_query: list[dict[str, dict[str, float]]]) -> UnitValues | None:
    """Return a metric of each query, ordered by id, or None if mteb did not record it once."""
    name, _, cut = metric.partition("_at_")
    key = f"{TREC_METRICS.get(name, name)}_{cut}"
    if len(by_query) != 1 or not all(key in metrics for metrics in by_query[0].values()):
        return None
    values = np.array([by_query[0][query][key] for query in sorted(by_query[0])])
    return UnitValues(float(values.mean()), len(values), values)


def _score_texts(task: Any, predictions: Any, rows: Any, scores: Any) -> UnitValues:
    """Return the share of mteb's classifiers that label each test text correctly, whose mean is the accuracy."""
    labels = np.asarray(rows[task.label_column_name][:])
    # (classifiers, texts) to (texts,): mteb's accuracy is the mean over both.
    right = np.array([np.asarray(predicted) == labels for predicted in predictions], dtype=float).mean(axis=0)
    return UnitValues(float(right.mean()), len(right), right)


def _score_translations(task: Any, predictions: Any, rows: Any, scores: Any) -> UnitValues | None:
    """Return the F1 of each sentence pair in a bitext task, each pair being a class.

    The mean is mteb's F1. Returns None for data with several pairs of languages or with gold alignments.
    """
    from sklearn.metrics import f1_score

    if len(predictions) != 1 or "gold" in rows.column_names:
        return None

    (nearest,) = predictions.values()
    labels = list(range(len(nearest)))
    values = f1_score(labels, [match["corpus_id"] for match in nearest], labels=labels, average=None, zero_division=0)

    return UnitValues(float(values.mean()), len(labels), values)


def _jackknife_spearman(task: Any, predictions: Any, rows: Any, scores: Any) -> UnitValues:
    """Return Spearman's ρ of the cosines of a task's pairs with their gold scores, and its jackknife values."""
    from scipy.stats import rankdata

    def spearman(chosen: NDArray[np.bool_]) -> float:
        return float(np.corrcoef(rankdata(cosines[chosen]), rankdata(gold[chosen]))[0, 1])

    gold, cosines = np.asarray(rows["score"][:], float), np.asarray(predictions["cosine_scores"], float)
    return jackknife(spearman, len(gold))


def _jackknife_precision(task: Any, predictions: Any, rows: Any, scores: Any) -> UnitValues:
    """Return the average precision of a pair classification with its jackknife values.

    Of several similarities, the one with the highest average precision is used, as in mteb's `max_ap`.
    """
    from sklearn.metrics import average_precision_score

    labels = np.asarray(rows[task.label_column_name][:])
    similarities = [
        (-1 if name.endswith("distances") else 1) * np.asarray(similarity, float)
        for name, similarity in predictions.items()
    ]
    best = max(similarities, key=lambda similarity: float(average_precision_score(labels, similarity)))

    return jackknife(lambda chosen: float(average_precision_score(labels[chosen], best[chosen])), len(labels))


def _bootstrap_clusterings(task: Any, predictions: Any, rows: Any, scores: Any) -> UnitValues | None:
    """Return the V-measures of mteb's samples of texts, spread so that their standard error is a bootstrap's.

    Returns None for several levels or under a row limit. The values are spread around their mean. Each sample draws as
    many texts as there are with replacement, so the standard deviation over samples is the standard error of the score.
    It also contains the noise of k-means, so intervals are up to twice as wide as needed. Under a row limit mteb draws
    more texts than there are, whose deviations are mostly that noise.
    """
    levels = scores["v_measures"]
    if len(levels) != 1 or task.max_documents_per_cluster != len(rows):
        return None
    (measures,) = (np.asarray(level, float) for level in levels.values())
    values = measures.mean() + np.sqrt(len(measures)) * (measures - measures.mean())
    return UnitValues(float(measures.mean()), len(rows), values)


_BY_TYPE: dict[tuple[str, str], Callable[[Any, Any, Any, Any], UnitValues | None]] = {
    ("Classification", "accuracy"): _score_texts,
    ("BitextMining", "f1"): _score_translations,
    ("STS", "cosine_spearman"): _jackknife_spearman,
    ("PairClassification", "max_ap"): _jackknife_precision,
    ("Clustering", "v_measure"): _bootstrap_clusterings,
}
"""Functions by type of task and main score.

Their arguments are task, predictions, rows of the test and mteb's scores.
"""


def jackknife(metric: Callable[[NDArray[np.bool_]], float], units: int) -> UnitValues:
    """Return a metric over all units with its jackknife pseudo-values.

    The spread of these values estimates the metric's standard error. A pseudo-value is `g·θ − (g − 1)·θ₋ᵢ`, where θ₋ᵢ
    leaves out the i-th of g groups. A group is one unit, or every g-th if there are more units than
    `MAX_JACKKNIFE_GROUPS`.

    Args:
        metric: returns the metric of the units that a mask `(units,)` selects.
        units: number of units.
    """
    groups = min(units, MAX_JACKKNIFE_GROUPS)
    full = metric(np.ones(units, bool))
    # Every g-th unit, so that neighbouring rows, which are often alike, are in different groups.
    group_of_unit = np.arange(units) % groups
    without = np.array([metric(group_of_unit != group) for group in range(groups)])
    return UnitValues(full, units, groups * full - (groups - 1) * without)
