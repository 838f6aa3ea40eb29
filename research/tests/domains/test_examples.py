import numpy as np
import pytest
from sklearn.metrics import v_measure_score

from lathe.training.evaluation.encoders import TextVectors, text_key
from lathe.training.evaluation.methods import CONTROL_METHOD
from lathe.training.evaluation.worker import load_task, score_methods
from research.domains.examples import read_examples
from research.domains.samples import LabelledPool, PairPool, ScoredPool
from research.domains.texts import sample_texts

ROWS = range(14)
CLASSES = [{"text": f"text {row} of {row % 3}", "label": ["east", "north", "west"][row % 3]} for row in range(60)]
PAIRS = [{"sentence1": f"one {n}", "sentence2": f"other {n}"} for n in ROWS]
TRANSLATED = [{"anchor": f"Satz {n}", "positive": f"sentence {n}"} for n in ROWS]
GRADED = [
    {
        "text": f"document {n}",
        "human_summaries": [f"person {n}", f"somebody {n}"],
        "machine_summaries": [f"machine {n} {m}" for m in range(4)],
        "relevance": [1, 1, 1, 1] if n == 0 else [4, 3.5, 2, 1],
    }
    for n in ROWS
]
RANKED = [
    {"query": f"query {n}", "positive": [f"good {n}", f"fine {n}"], "negative": [f"bad {m}" for m in range(n + 1)]}
    for n in ROWS
]
SEARCHED = {
    "corpus.jsonl": [
        {"_id": f"d{n}", "text": f"document {n} "} | ({"title": f"Title {n}"} if n % 3 else {}) for n in range(40)
    ],
    "queries.jsonl": [{"_id": f"q{n}", "text": f"query {n}"} for n in ROWS],
}
JUDGED = {"test": [(f"q{n}", f"d{(n * m) % 40}", m) for n in ROWS for m in (1, 2)]}
SUITES = {
    "retrieval": ({"task": "retrieval"}, SEARCHED, JUDGED),
    "pairs": ({"task": "pairs"}, {"test.jsonl": TRANSLATED}, None),
    "translations": ({"task": "pairs", "language": "de-en"}, {"test.jsonl": TRANSLATED}, None),
    "reranking": ({"task": "reranking"}, {"test.jsonl": RANKED}, None),
    "classification": ({"task": "classification"}, {"train.jsonl": CLASSES, "test.jsonl": CLASSES[:20]}, None),
    "summarization": ({"task": "summarization"}, {"test.jsonl": GRADED}, None),
    "sts": ({"task": "sts"}, {"test.jsonl": [row | {"score": n % 5} for n, row in enumerate(PAIRS)]}, None),
    "pair_classification": (
        {"task": "pair_classification"},
        {"test.jsonl": [row | {"label": n % 2} for n, row in enumerate(PAIRS)]},
        None,
    ),
}
MTEB_COPIES_TENSORS = pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning")


@MTEB_COPIES_TENSORS
@pytest.mark.parametrize("limit", [None, 12])
@pytest.mark.parametrize("task", SUITES)
def test_measuring_all_examples_equals_mtebs_score(stored, task, limit):
    entry, located = stored(*SUITES[task], limit=limit)
    load_task(entry)[0].n_experiments = 1  # of classification: the training that examples are taken from
    (expected,) = score_methods(entry, *located, [CONTROL_METHOD])
    assert expected.error is None
    pool = read_examples(entry, located)
    assert isinstance(pool, PairPool if task in ("sts", "pair_classification") else ScoredPool)
    metrics = {"pair_classification": "cosine_ap"}
    score = expected.metrics[metrics[task]] if task in metrics else expected.score
    assert pool.measure(np.arange(len(pool))[None])[0] == pytest.approx(score, abs=2e-5)


def test_examples_of_clustering_are_the_stored_vectors_with_labels(stored):
    entry, located = stored({"task": "clustering"}, {"test.jsonl": CLASSES[:20]})
    pool = read_examples(entry, located)
    assert isinstance(pool, LabelledPool)
    assert v_measure_score([row["label"] for row in CLASSES[:20]], pool.labels) == pytest.approx(1)
    store = TextVectors.open(located[1], located[0].dimensions)
    np.testing.assert_array_equal(pool.vectors, store.get([text_key(row["text"]) for row in CLASSES[:20]]))


def test_sample_texts_returns_the_evaluated_texts_and_the_mean_of_their_vectors(stored):
    entry, located = stored(*SUITES["retrieval"])
    found = sample_texts(entry, located)
    documents = [f"{'Title ' + str(n) + ' ' if n % 3 else ''}document {n}" for n in range(40)]
    queries = [row["text"] for row in SEARCHED["queries.jsonl"]]
    assert set(found.texts) == {*documents, *queries}
    store = TextVectors.open(located[1], located[0].dimensions)
    keys = [text_key(text, "read: ") for text in documents] + [text_key(text, "ask: ") for text in queries]
    np.testing.assert_allclose(found.mean, store.get(keys).mean(axis=0), atol=1e-6)
    assert sample_texts(entry, None).mean is None
    assert sample_texts(entry, None).texts == found.texts
