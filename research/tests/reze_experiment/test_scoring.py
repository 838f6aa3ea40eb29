import math

import numpy as np
import orjson
import pytest

from lathe.training.datasets.folder import FolderDataSet
from lathe.training.datasets.records import Warnings
from lathe.training.errors import DataSetError
from lathe.training.evaluation.encoders import TextVectors, text_key
from lathe.training.evaluation.model import StoredModel
from lathe.training.evaluation.worker import measure
from lathe.training.finetuning.job import SourceSettings
from lathe.training.settings import Prompts
from research.reze_experiment.scoring import Scorer
from research.reze_experiment.targets import Target

pytestmark = pytest.mark.filterwarnings("ignore:.*is ill-defined")  # of labels that nothing is taken for

PLAIN = Prompts()
LABELS = ["10", "2", "1", "b", "B"]
"""In no order that anything sorts by."""
SAID = {"10": "it was sold", "2": "it was seen", "1": "it was boiled", "B": "it was lost"}
COUNTS = {"10": 5, "2": 4, "1": 3, "b": 2, "B": 1}


def labelled(split, times=1):
    return [
        {"text": f"{split} {label} {n}", "label": int(label) if label.isdigit() else label}
        for label in LABELS
        for n in range(times * COUNTS[label])
    ]


def label_of(text):
    """Return the label of a text: an input names its label, a label's own text means it."""
    said = {text: label for label, text in SAID.items()} | {"b": "b"}
    return said.get(text) or text.split()[1]


def one_hot(labels):
    rows = np.full((len(labels), len(LABELS)), 0.1, np.float32)
    rows[np.arange(len(labels)), [LABELS.index(label) for label in labels]] = 1
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def scorer_of(data, prompts=PLAIN, limit=None):
    return Scorer(Target(data, SourceSettings(folder=data.folder, prompts=prompts)), limit)


@pytest.fixture(scope="module")
def tone(tmp_path_factory, write_data_set):
    """Write a classification data set of five labels in an order that no sorting gives."""
    files = {"train.jsonl": labelled("train", 2), "test.jsonl": labelled("test")}
    folder = write_data_set(tmp_path_factory.mktemp("data") / "tone", {"task": "classification"}, files)
    (folder / "labels.json").write_bytes(orjson.dumps(SAID))
    return FolderDataSet("tone", "classification", folder)


@pytest.fixture(scope="module")
def search(tmp_path_factory, write_data_set):
    """Write a retrieval data set in which document n answers query n.

    Some documents have titles.
    """
    documents = [{"_id": f"d{n}", "text": f"document {n}", "title": "The" if n % 2 else ""} for n in range(12)]
    files = {"corpus.jsonl": documents, "queries.jsonl": [{"_id": f"q{n}", "text": f"query {n}"} for n in range(12)]}
    folder = tmp_path_factory.mktemp("data") / "search"
    write_data_set(folder, {"task": "retrieval"}, files, {"test": [(f"q{n}", f"d{n}", 1) for n in range(12)]})
    return FolderDataSet("search", "retrieval", folder)


def numbers(texts):
    return [int(text.split()[-1]) for text in texts]


@pytest.mark.parametrize("fixed", LABELS)
def test_inputs_on_other_labels_count_as_errors_and_a_regression_learns_them(tone, fixed):
    others = [label for label in LABELS if label != fixed]
    moved = dict(zip(others, [*others[1:], others[0]], strict=True)) | {fixed: fixed}
    scorer = scorer_of(tone)
    inputs = {row["text"] for split in ("train", "test") for row in labelled(split, 2)}
    vectors = one_hot([moved[label_of(text)] if text in inputs else label_of(text) for text in scorer.texts])
    found = scorer.score(vectors)
    assert found.label_accuracy == pytest.approx(COUNTS[fixed] / sum(COUNTS.values()))
    assert found.score == 1.0  # it learns the new places


def test_label_accuracy_equals_a_direct_computation(tone):
    scorer = scorer_of(tone)
    vectors = np.random.default_rng(0).standard_normal((len(scorer.texts), 6)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    place = {text: vector for text, vector in zip(scorer.texts, vectors, strict=True)}
    right = [
        max(LABELS, key=lambda label: place[row["text"]] @ place[SAID.get(label, label)]) == str(row["label"])
        for row in labelled("test")
    ]
    assert 0 < sum(right) < len(right)
    assert scorer.score(vectors).label_accuracy == pytest.approx(sum(right) / len(right))


def test_the_score_is_mtebs_score_of_the_task(tone):
    scorer = scorer_of(tone)
    vectors = np.random.default_rng(1).standard_normal((len(scorer.texts), 6)).astype(np.float32)
    task = tone.build_task(Warnings())
    stored = TextVectors(map(text_key, scorer.texts), vectors)
    expected = measure(StoredModel(stored), task).score
    assert 0 < expected < 1
    assert scorer.score(vectors).score == expected


def test_inputs_and_labels_are_scored_with_their_own_prompts(tone):
    scorer = scorer_of(tone, Prompts(anchor="q: ", positive="p: "))
    assert {f"q: {row['text']}" for row in labelled("test")} <= set(scorer.texts)
    assert {f"p: {text}" for text in [*SAID.values(), "b"]} <= set(scorer.texts)
    assert all(text.startswith(("q: ", "p: ")) for text in scorer.texts)
    assert len(set(scorer.texts)) == len(scorer.texts)
    swapped = one_hot([label_of(text[3:]) for text in scorer.texts])
    for row, text in enumerate(scorer.texts):  # what carries the other prompt must not be looked at
        if text.startswith("p: ") and text[3:] not in [*SAID.values(), "b"]:
            swapped[row] = -swapped[row]
    assert scorer.score(swapped).label_accuracy == 1.0


@pytest.mark.parametrize("before", [1, 2, 5])
def test_ndcg_at_10_is_discounted_by_the_documents_ranked_before_the_relevant_one(search, before):
    scorer = scorer_of(search)
    rows = np.zeros((len(scorer.texts), 12), np.float32)
    for row, (text, number) in enumerate(zip(scorer.texts, numbers(scorer.texts), strict=True)):
        rows[row, number] = 1
        if text.startswith("query"):
            rows[row, [(number + step) % 12 for step in range(1, before + 1)]] = 2
    assert scorer.score(rows).score == pytest.approx(1 / math.log2(before + 2), abs=1e-5)


def test_a_target_without_a_test_split_is_refused(tmp_path, write_data_set):
    folder = write_data_set(tmp_path / "set", {"task": "classification"}, {"train.jsonl": labelled("train")})
    with pytest.raises(DataSetError, match=r"test\.jsonl is missing"):
        scorer_of(FolderDataSet("set", "classification", folder))
