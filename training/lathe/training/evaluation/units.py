"""Values of single queries, texts or pairs, so that methods can be compared within one data set.

mteb returns one score for a data set. The interval of a difference between two scores is estimated from the units of
the data set: queries, texts or pairs. Two methods are compared on the same units. The value of a unit depends on the
type of the task:

    Retrieval, Reranking   query   metric of the query, from mteb (pytrec_eval)
    Classification         text    share of the ten classifiers that are right
    BitextMining           pair    F1 of the translation
    STS                    pair    jackknife of Spearman's ρ of the cosines
    PairClassification     pair    jackknife of the average precision
    Clustering             text    the ten samples of texts that mteb draws with replacement, as a bootstrap

The mean of the values is the score, for the last three types up to a bias of order 1/n. The variance of the values
divided by their number is the sampling variance of the score. So differences between two methods' values are tested in
the same way for all types.
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
"""Maximum number of groups of units that a jackknife leaves out one by one.

With fewer units, a group is a single unit. The metric is computed once for each group.
"""
TOLERANCE = 1e-4
"""Maximum difference between mteb's score and the score of the values. mteb rounds scores to five decimals."""
TREC_METRICS = {"ndcg": "ndcg_cut", "map": "map_cut", "recall": "recall", "precision": "P", "hit_rate": "success"}
"""pytrec_eval's names of metrics, by the first part of mteb's name, such as ndcg of ndcg_at_10."""


@dataclass(frozen=True)
class UnitValues:
    """Values of a data set's units (queries, texts or pairs) under one method, and the score of the data set.

    Attributes:
        score: score of the whole data set, computed from the units.
        units: number of units.
        values: values of units or of groups of units, `(n,)`, in the order of the units.
    """

    score: float
    units: int
    values: Array


Record = Path | list[dict[str, dict[str, float]]]
"""What mteb computed for single units: the folder of its predictions, or for a search a list of metrics by query."""


@contextmanager
def record_units(task: Any) -> Iterator[Record]:
    """Yield a list that records mteb's metrics by query, or for other tasks a temporary folder for predictions.

    The list gets an entry for each split; for that, `task_specific_scores` of the task is patched within the block. The
    folder is deleted after the block.
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
    """Compute the values of queries, texts or pairs whose mean is mteb's main score, or None if there are none.

    Returns None for task types and metrics that are not listed at the top of the module, for several splits or subsets,
    and if the values do not give mteb's score.

    Args:
        task: task of mteb, with its data.
        scores: by split, the list of mteb's scores of the subsets.
        record: what `record_units` recorded.
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

    # Values of another metric than mteb's main score would give a wrong interval.
    if unit_values is None or abs(unit_values.score - float(subset_scores["main_score"])) > TOLERANCE:
        return None

    return unit_values


def _score_queries(metric: str, by_query: list[dict[str, dict[str, float]]]) -> UnitValues | None:
    """Return a metric's values by query, ordered by id, or None if mteb did not record it once for every query."""
    name, _, cut = metric.partition("_at_")
    key = f"{TREC_METRICS.get(name, name)}_{cut}"
    if len(by_query) != 1 or not all(key in metrics for metrics in by_query[0].values()):
        return None
    values = np.array([by_query[0][query][key] for query in sorted(by_query[0])])
    return UnitValues(float(values.mean()), len(values), values)


def _score_texts(task: Any, predictions: Any, rows: Any, scores: Any) -> UnitValues:
    """Compute for each test text the share of mteb's classifiers that predict its label. The mean is the accuracy."""
    labels = np.asarray(rows[task.label_column_name][:])
    # (classifiers, texts) to (texts,): mteb's accuracy is the mean over both.
    right = np.array([np.asarray(predicted) == labels for predicted in predictions], dtype=float).mean(axis=0)
    return UnitValues(float(right.mean()), len(right), right)


def _score_translations(task: Any, predictions: Any, rows: Any, scores: Any) -> UnitValues | None:
    """Compute the F1 score of each sentence pair of a bitext task, or None for several languages or gold alignments.

    Every pair is a class. The mean is mteb's F1.
    """
    from sklearn.metrics import f1_score

    if len(predictions) != 1 or "gold" in rows.column_names:
        return None

    (nearest,) = predictions.values()
    labels = list(range(len(nearest)))
    values = f1_score(labels, [match["corpus_id"] for match in nearest], labels=labels, average=None, zero_division=0)

    return UnitValues(float(values.mean()), len(labels), values)


def _jackknife_spearman(task: Any, predictions: Any, rows: Any, scores: Any) -> UnitValues:
    """Compute Spearman's ρ between cosines and gold scores of a task's pairs, with jackknife pseudo-values."""
    from scipy.stats import rankdata

    def spearman(chosen: NDArray[np.bool_]) -> float:
        return float(np.corrcoef(rankdata(cosines[chosen]), rankdata(gold[chosen]))[0, 1])

    gold, cosines = np.asarray(rows["score"][:], float), np.asarray(predictions["cosine_scores"], float)
    return jackknife(spearman, len(gold))


def _jackknife_precision(task: Any, predictions: Any, rows: Any, scores: Any) -> UnitValues:
    """Compute the average precision of a pair classification by the best similarity, with jackknife pseudo-values.

    As in mteb's `max_ap`, the similarity with the highest average precision is used.
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
    """Scale V-measures of mteb's bootstrap samples around their mean, as unit values. None under a row limit.

    Returns None for several levels of labels, and if mteb's samples do not have as many texts as the data set, as under
    a row limit.

    mteb samples texts with replacement, so the standard deviation over samples is the standard error of the score. With
    m samples, deviations are multiplied by √m, because the standard error of the mean of values divides by √m. The
    deviations also contain the noise of k-means, so intervals are up to twice as long as needed. Under a row limit,
    they would be mostly that noise.
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
"""Functions that compute unit values, by type of task and main score.

The arguments are the task, mteb's predictions, the test rows and mteb's scores.
"""


def jackknife(metric: Callable[[NDArray[np.bool_]], float], units: int) -> UnitValues:
    """Compute a metric over all units, and its jackknife pseudo-values, whose spread estimates the standard error.

    A pseudo-value is `g·θ − (g − 1)·θ₋ᵢ`, where θ₋ᵢ leaves out the i-th of g groups of units. A group is a single unit,
    or every g-th unit if there are more than `MAX_JACKKNIFE_GROUPS` units.

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
