"""How an encoder does on each example of a data set, from its stored vectors.

| task | an example | a sample of examples has |
|---|---|---|
| retrieval, pairs | nDCG@10 of a query over the whole corpus | the mean |
| reranking | average precision of a query | the mean |
| classification | whether a test row is right, after training on 8 rows a label as mteb draws them first | the mean |
| translations | F1 of a sentence's own translation among the nearest | the mean |
| summarization | Spearman of cosine (to the nearest summary by a person) and grade, in a document | the mean |
| sts | cosine and score of a pair, scores brought to 0 to 1 | Spearman |
| pair_classification | cosine and label of a pair | average precision |
| clustering | vector and label of a text | V-measure of k-means |

Only worker processes import this, as it imports mteb; see `training.evaluation.worker`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from mteb.types import PromptType
from numpy.typing import NDArray
from scipy import stats
from sklearn.linear_model import LogisticRegression

from training.evaluation.model import StoredModel
from training.evaluation.statistics import Array, rank_correlation
from training.evaluation.tasks import splits_of
from training.evaluation.worker import Raw, Trial, loaded, opened
from training.research.domains.measures import RANKS, average_precision, average_precisions, best_places, ndcg
from training.research.domains.samples import LabelledPool, PairPool, Pool, ScoredPool

Vectors = NDArray[np.float32]
QUERY_ROWS = 256
"""Queries that meet the whole corpus at once."""


class Encode(Protocol):
    """Stored vectors by their texts, as a task asks for them."""

    def __call__(self, texts: Sequence[str], prompt_type: PromptType | None = None) -> Vectors:
        """Unit vectors `(n, d)`, so that products are cosines.

        Raises:
            KeyError: for a text that has none.
        """


def read_examples(trial: Trial, raw: Raw) -> Pool:
    """The examples of a data set in one of our layouts, under one encoder.

    Raises:
        EvaluationError: if the data set cannot be read.
        KeyError: if a vector is missing.
    """
    task, _ = loaded(trial)
    model = stored_model(raw)

    def encode(texts: Sequence[str], prompt_type: PromptType | None = None) -> Vectors:
        return model.encode([{"text": list(texts)}], task_metadata=task.metadata, prompt_type=prompt_type)

    holder, split = next(iter(splits_of(task)))
    if trial.entry.task == "classification":
        return classification(task, holder[task.train_split], holder[split], encode)
    return EXAMPLES[trial.entry.task](holder[split], encode)


def stored_model(raw: Raw) -> StoredModel:
    """An encoder's stored output as mteb takes it."""
    return StoredModel(raw.name, raw.fingerprint, raw.prompts, raw.default_prompt, opened(raw))


def document_texts(corpus: Any) -> list[str]:
    """Documents as mteb hands them to an encoder: title and text in one."""
    rows = zip(corpus["title"], corpus["text"], strict=True) if "title" in corpus.column_names else None
    if rows is None:
        return [text.strip() for text in corpus["text"]]
    return [f"{title} {text}".strip() if title else text.strip() for title, text in rows]


def retrieval(data: Any, encode: Encode) -> Pool:
    """nDCG@10 of every query."""
    ids = list(data["corpus"]["id"])
    order = sorted(range(len(ids)), key=lambda row: ids[row], reverse=True)  # trec_eval's, of equal similarities
    places = {ids[row]: place for place, row in enumerate(order)}
    texts = document_texts(data["corpus"])
    documents = encode([texts[row] for row in order], PromptType.document)
    relevant = data["relevant_docs"]
    asked = [(key, text) for key, text in zip(data["queries"]["id"], data["queries"]["text"], strict=True)]
    scores = []
    for start in range(0, len(asked), QUERY_ROWS):
        block = asked[start : start + QUERY_ROWS]
        similarities = encode([text for _, text in block], PromptType.query) @ documents.T
        for (key, _), row in zip(block, similarities, strict=True):
            grades = {places[document]: grade for document, grade in relevant[key].items()}
            found = [grades.get(int(place), 0) for place in best_places(row, RANKS)]
            scores.append(ndcg(np.array(found, float), np.array(list(grades.values()), float)))
    return ScoredPool(np.array(scores))


def reranking(data: Any, encode: Encode) -> Pool:
    """Average precision of every query among the documents to choose from."""
    ids = list(data["corpus"]["id"])
    rows = {key: row for row, key in enumerate(ids)}
    documents = encode(document_texts(data["corpus"]), PromptType.document)
    queries = encode(list(data["queries"]["text"]), PromptType.query)
    scores = []
    for key, query in zip(data["queries"]["id"], queries, strict=True):
        candidates = sorted(data["top_ranked"][key], reverse=True)
        grades = data["relevant_docs"][key]
        similarities = documents[[rows[candidate] for candidate in candidates]] @ query
        ranked = [grades.get(candidates[place], 0) > 0 for place in best_places(similarities, len(candidates))]
        scores.append(average_precision(np.array(ranked), sum(grade > 0 for grade in grades.values())))
    return ScoredPool(np.array(scores))


def classification(task: Any, train: Any, test: Any, encode: Encode) -> Pool:
    """Which test rows are right after mteb's first of ten trainings: its rows have vectors for certain."""
    _, _, chosen = task._undersample_data(train, 0)
    rows = train.select(chosen)
    model = LogisticRegression(max_iter=100, random_state=task.seed)
    model.fit(encode(list(rows["text"])), np.asarray(rows["label"][:]))
    right = model.predict(encode(list(test["text"]))) == np.asarray(test["label"][:])
    return ScoredPool(right.astype(float))


def translations(data: Any, encode: Encode) -> Pool:
    """F1 of each sentence's own translation among those that are nearest to any: mteb's score is the mean."""
    ours, theirs = encode(list(data["sentence1"])), encode(list(data["sentence2"]))
    blocks = [ours[start : start + QUERY_ROWS] @ theirs.T for start in range(0, len(ours), QUERY_ROWS)]
    nearest = np.concatenate([block.argmax(axis=1) for block in blocks])
    right = nearest == np.arange(len(ours))
    taken = np.bincount(nearest, minlength=len(ours))  # how many sentences chose each
    return ScoredPool(np.where(right, 2 / (1 + taken), 0.0))


def summarization(data: Any, encode: Encode) -> Pool:
    """How far cosines to the nearest human summary rank the machines' as people do, in each document.

    Documents whose grades or cosines are all equal have no correlation: NaN, as mteb leaves them out.
    """
    scores = []
    for human, machine, grades in zip(
        data["human_summaries"], data["machine_summaries"], data["relevance"], strict=True
    ):
        cosines = (encode(machine) @ encode(human).T).max(axis=1)
        alike = np.ptp(cosines) == 0 or np.ptp(grades) == 0
        scores.append(float("nan") if alike else float(stats.spearmanr(cosines, grades).statistic))
    return ScoredPool(np.array(scores))


def sts(data: Any, encode: Encode) -> Pool:
    """Cosine and score of each pair; scores of every data set go from 0 to 1, so that they can be pooled."""
    scores = np.array(data["score"], float)
    span = float(np.ptp(scores)) or 1.0  # a limit may leave one score
    return PairPool(pair_cosines(data, encode), (scores - scores.min()) / span, rank_correlation)


def pair_classification(data: Any, encode: Encode) -> Pool:
    """Cosine and label of each pair."""
    return PairPool(pair_cosines(data, encode), np.array(data["label"], float), average_precisions)


def pair_cosines(data: Any, encode: Encode) -> Array:
    """Cosines `(n,)` of the pairs."""
    products = encode(list(data["sentence1"])) * encode(list(data["sentence2"]))
    return np.asarray(products.sum(axis=1, dtype=np.float64))


def clustering(data: Any, encode: Encode) -> Pool:
    """Vectors and labels."""
    _, labels = np.unique(np.array(data["label"][:]), return_inverse=True)
    numbers: NDArray[np.int64] = labels.astype(np.int64)
    return LabelledPool(encode(list(data["text"])), numbers)


EXAMPLES: dict[str, Callable[[Any, Encode], Pool]] = {
    "retrieval": retrieval,
    "pairs": retrieval,
    "reranking": reranking,
    "translations": translations,
    "summarization": summarization,
    "sts": sts,
    "pair_classification": pair_classification,
    "clustering": clustering,
}
"""What reads the examples of a data set, by its task; classification needs the rows to train on as well."""
