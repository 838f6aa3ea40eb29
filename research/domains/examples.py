"""Score of an encoder on each example of a data set, from its stored vectors.

| examples | an example | the score of a sample of examples |
|---|---|---|
| queries | nDCG@10 of a query over the whole corpus | mean |
| queries with candidates | average precision of a query | mean |
| classified texts | whether a test row is right, after training on 8 rows a label as mteb draws them first | mean |
| translations | F1 of a sentence's own translation among the nearest | mean |
| graded summaries | Spearman of cosine (to the nearest human summary) and grade, in a document | mean |
| scored pairs | cosine and gold score of a pair, scores rescaled to 0 to 1 | Spearman |
| labelled pairs | cosine and label of a pair | average precision |
| clustered texts | vector and label of a text | V-measure of k-means |

Only worker processes import this module, because it imports
mteb; see `lathe.training.evaluation.worker`.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from mteb.types import PromptType
from numpy.typing import NDArray
from scipy import stats
from sklearn.linear_model import LogisticRegression

from lathe.training.comparison import Array
from lathe.training.evaluation.model import StoredModel
from lathe.training.evaluation.suites import Entry
from lathe.training.evaluation.tasks import iterate_splits
from lathe.training.evaluation.worker import load_task, open_vectors
from research.domains.measures import RANKS, average_precision, average_precisions, ndcg, rank_best
from research.domains.samples import LabelledPool, PairPool, Pool, ScoredPool, StoredVectors
from research.paper_findings.statistics import rank_correlation

Vectors = NDArray[np.float32]
"""Float32 vectors, one per row."""
QUERY_ROWS = 256
"""Number of queries that are compared with the whole corpus at once, which bounds the memory."""


class EvaluatedSplit:
    """Evaluated split of a task, with the stored vectors of one encoder.

    Args:
        task: task of mteb, with its data.
        model: encoder that looks up the stored vectors.

    Attributes:
        data: rows of the split, or queries, corpus and judgements of a search.
        holder: dict that holds the splits.
    """

    def __init__(self, task: Any, model: StoredModel) -> None:
        self.task, self.model = task, model
        self.holder, split = next(iter(iterate_splits(task)))
        self.data: Any = self.holder[split]

    def encode(self, texts: Iterable[str], prompt_type: PromptType | None = None) -> Vectors:
        """Return the stored unit vectors `(n, d)` of the texts, so that dot products are cosines.

        Args:
            texts: texts without their prompt.
            prompt_type: query, document or None; with the task, it decides which prompt the vectors were encoded with.

        Raises:
            KeyError: if a text has no stored vector.
        """
        return self.model.encode([{"text": list(texts)}], task_metadata=self.task.metadata, prompt_type=prompt_type)


def read_examples(entry: Entry, stored: StoredVectors) -> Pool:
    """Read a data set in one of Lathe's layouts, and return its examples scored with the stored vectors of one encoder.

    Raises:
        EvaluationError: if the data set cannot be read.
        KeyError: if a vector is missing.
    """
    task, _ = load_task(entry)
    return _SCORERS[entry.task](EvaluatedSplit(task, open_stored_model(stored)))


def open_stored_model(stored: StoredVectors) -> StoredModel:
    """Return an mteb encoder that looks up an encoder's stored vectors instead of running the model."""
    member, folder = stored
    return StoredModel(open_vectors(folder, member.dimensions), member.prompts, member.default_prompt)


def join_title_and_text(corpus: Any) -> list[str]:
    """Return the documents as mteb passes them to an encoder: title and text joined by a space, stripped."""
    rows = zip(corpus["title"], corpus["text"], strict=True) if "title" in corpus.column_names else None
    if rows is None:
        return [text.strip() for text in corpus["text"]]
    return [f"{title} {text}".strip() if title else text.strip() for title, text in rows]


def _score_queries(split: EvaluatedSplit) -> Pool:
    """Compute the nDCG@10 of each query over the whole corpus.

    Ties by descending document id, as in trec_eval.
    """
    ids = list(split.data["corpus"]["id"])
    order = sorted(range(len(ids)), key=lambda row: ids[row], reverse=True)  # trec_eval's, of equal similarities
    places = {ids[row]: place for place, row in enumerate(order)}
    texts = join_title_and_text(split.data["corpus"])
    documents = split.encode([texts[row] for row in order], PromptType.document)
    relevant = split.data["relevant_docs"]
    asked = [(key, text) for key, text in zip(split.data["queries"]["id"], split.data["queries"]["text"], strict=True)]
    scores = []
    for start in range(0, len(asked), QUERY_ROWS):
        block = asked[start : start + QUERY_ROWS]
        similarities = split.encode([text for _, text in block], PromptType.query) @ documents.T
        for (key, _), row in zip(block, similarities, strict=True):
            grades = {places[document]: grade for document, grade in relevant[key].items()}
            found = [grades.get(int(place), 0) for place in rank_best(row, RANKS)]
            scores.append(ndcg(np.array(found, float), np.array(list(grades.values()), float)))
    return ScoredPool(np.array(scores))


def _score_candidates(split: EvaluatedSplit) -> Pool:
    """Compute the average precision of each query over its own candidate documents."""
    ids = list(split.data["corpus"]["id"])
    rows = {key: row for row, key in enumerate(ids)}
    documents = split.encode(join_title_and_text(split.data["corpus"]), PromptType.document)
    queries = split.encode(split.data["queries"]["text"], PromptType.query)
    scores = []
    for key, query in zip(split.data["queries"]["id"], queries, strict=True):
        candidates = sorted(split.data["top_ranked"][key], reverse=True)
        grades = split.data["relevant_docs"][key]
        similarities = documents[[rows[candidate] for candidate in candidates]] @ query
        ranked = [grades.get(candidates[place], 0) > 0 for place in rank_best(similarities, len(candidates))]
        scores.append(average_precision(np.array(ranked), sum(grade > 0 for grade in grades.values())))
    return ScoredPool(np.array(scores))


def _score_predictions(split: EvaluatedSplit) -> Pool:
    """Train a logistic regression, and score each test row 1.0 if its label is predicted, else 0.0.

    The training rows are the first of the ten samples that mteb draws, because their vectors are certainly stored.
    """
    task, train, test = split.task, split.holder[split.task.train_split], split.data
    _, _, chosen = task._undersample_data(train, 0)
    rows = train.select(chosen)
    model = LogisticRegression(max_iter=100, random_state=task.seed)
    model.fit(split.encode(rows["text"]), np.asarray(rows["label"][:]))
    right = model.predict(split.encode(test["text"])) == np.asarray(test["label"][:])
    return ScoredPool(right.astype(float))


def _score_translations(split: EvaluatedSplit) -> Pool:
    """Compute the F1 of each sentence's translation as its nearest neighbour, of which mteb's score is the mean.

    The score is 0 if another translation is nearer, else 2 / (1 + number of sentences that have this translation as
    nearest).
    """
    ours, theirs = split.encode(split.data["sentence1"]), split.encode(split.data["sentence2"])
    blocks = [ours[start : start + QUERY_ROWS] @ theirs.T for start in range(0, len(ours), QUERY_ROWS)]
    nearest = np.concatenate([block.argmax(axis=1) for block in blocks])
    right = nearest == np.arange(len(ours))
    taken = np.bincount(nearest, minlength=len(ours))  # how many sentences chose each
    return ScoredPool(np.where(right, 2 / (1 + taken), 0.0))


def _score_summaries(split: EvaluatedSplit) -> Pool:
    """Compute each document's Spearman correlation of machine summaries' grades and cosines to a human summary.

    The cosine is that to the nearest human summary. A document whose grades or cosines are all equal gets NaN, because
    mteb leaves such documents out.
    """
    scores = []
    for human, machine, grades in zip(
        split.data["human_summaries"], split.data["machine_summaries"], split.data["relevance"], strict=True
    ):
        cosines = (split.encode(machine) @ split.encode(human).T).max(axis=1)
        alike = np.ptp(cosines) == 0 or np.ptp(grades) == 0
        scores.append(float("nan") if alike else float(stats.spearmanr(cosines, grades).statistic))
    return ScoredPool(np.array(scores))


def _compare_scores(split: EvaluatedSplit) -> Pool:
    """Compute the cosine of each pair, with the gold scores rescaled to [0, 1].

    Samples are scored by Spearman's ρ. Rescaled scores of several data sets can be pooled.
    """
    scores = np.array(split.data["score"], float)
    span = float(np.ptp(scores)) or 1.0  # a limit may leave one score
    return PairPool(_compute_pair_cosines(split), (scores - scores.min()) / span, rank_correlation)


def _compare_labels(split: EvaluatedSplit) -> Pool:
    """Compute the cosine of each pair, with its label.

    Samples are scored by average precision.
    """
    return PairPool(_compute_pair_cosines(split), np.array(split.data["label"], float), average_precisions)


def _compute_pair_cosines(split: EvaluatedSplit) -> Array:
    """Return the cosine of `sentence1` and `sentence2` of each pair, `(n,)` float64."""
    products = split.encode(split.data["sentence1"]) * split.encode(split.data["sentence2"])
    return np.asarray(products.sum(axis=1, dtype=np.float64))


def _label_vectors(split: EvaluatedSplit) -> Pool:
    """Return the vectors of the texts, with their labels numbered from 0 in sorted order."""
    _, labels = np.unique(np.array(split.data["label"][:]), return_inverse=True)
    numbers: NDArray[np.int64] = labels.astype(np.int64)
    return LabelledPool(split.encode(split.data["text"]), numbers)


_SCORERS: dict[str, Callable[[EvaluatedSplit], Pool]] = {
    "classification": _score_predictions,
    "clustering": _label_vectors,
    "pair_classification": _compare_labels,
    "pairs": _score_queries,
    "reranking": _score_candidates,
    "retrieval": _score_queries,
    "sts": _compare_scores,
    "summarization": _score_summaries,
    "translations": _score_translations,
}
"""Function that scores the examples of a test, by the layout of its data set."""
