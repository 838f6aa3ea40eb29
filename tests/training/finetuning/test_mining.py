"""Hard negatives: supplied ones and mined ones."""

import numpy as np
import orjson
import pytest

from lathe.training.errors import DataSetError, JobError
from lathe.training.finetuning.extras import NegativeSettings
from lathe.training.finetuning.job import TargetSettings, TrainingJob
from lathe.training.finetuning.mining import AuxiliaryEncoder, Candidates, mine_negatives, mine_sources
from lathe.training.finetuning.mixture_builder import read_sources
from lathe.training.finetuning.opening import open_target
from lathe.training.settings import Prompts

QUESTIONS = {
    "q1": "How do I open a savings account?",
    "q2": "What is the interest on a mortgage?",
    "q3": "Which bird sings at night?",
}
DOCUMENTS = {
    "d1": "To open a savings account, bring an identity card to any branch.",
    "d2": "To open a savings account bring an identity card, to any BRANCH!",
    "d3": "A savings account can be closed at any branch.",
    "d4": "Opening a current account takes a form and a signature.",
    "d5": "The interest on a mortgage is four per cent.",
    "d6": "Interest on savings is two per cent.",
    "d7": "The nightingale sings at night.",
    "d8": "Owls hunt at night and blackbirds sing in the morning.",
    "d9": "A savings account may be opened online, too.",
}
JUDGED = [("q1", "d1", 1), ("q2", "d5", 1), ("q3", "d7", 1)]


@pytest.fixture
def search(tmp_path, write_data_set):
    """Write a small retrieval data set in which d9 answers q1 in the test split only."""
    files = {
        "corpus.jsonl": [{"_id": key, "text": text} for key, text in DOCUMENTS.items()],
        "queries.jsonl": [{"_id": key, "text": text} for key, text in QUESTIONS.items()],
    }
    qrels = {"train": JUDGED, "test": [("q1", "d9", 1)]}
    return write_data_set(tmp_path / "search", {"task": "retrieval"}, files, qrels)


@pytest.fixture
def job_of(tmp_path):
    """Return a function that builds a job of one source: JSON lines with these rows, or the given one."""

    def build(rows=None, source=None, **given):
        path = tmp_path / "pairs.jsonl"
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows or []))
        return TrainingJob.model_validate({"sources": [{"jsonl": path} | (source or {}) if rows else source]} | given)

    return build


@pytest.fixture
def mined(encoder, tmp_path):
    """Return a function that mines with the real encoder and returns negatives by query."""

    def find(job, target=None):
        builder = read_sources(job, target)
        mine_sources(builder, job.negatives, encoder, tmp_path / "cache", lambda *_: None)
        return {pair.anchor: pair.negatives for some in builder.pairs.values() for pair in some}

    return find


def row(anchor, positive, *negatives):
    return {"anchor": anchor, "positive": positive, "negative": list(negatives)}


def build_tested_rows(text):
    """Build rows of an STS test that contain a text."""
    return [{"sentence1": text, "sentence2": f"the number {n}", "score": n} for n in range(2)]


def test_supplied_negatives_are_read_and_those_of_repeated_pairs_merged(job_of):
    rows = [
        row("a", "b", "x", " ", "y"),
        {"anchor": "c", "positive": "d", "negative": "z"},
        {"anchor": "e", "positive": "f"},
    ]
    mixture = read_sources(
        job_of([*rows, row("a", "b", "w", "x")], {"prompts": {"anchor": "Q: ", "positive": "D: "}})
    ).build()
    assert list(mixture.negatives) == [("D: x", "D: y", "D: w"), ("D: z",), ()]
    assert mixture.reports[0].negatives == 4
    assert read_sources(job_of(rows, {"negatives": "none"})).build().negatives == ()
    assert read_sources(job_of(rows, {"negative": "bad"})).build().negatives == ()


def test_supplied_negatives_that_answer_their_query_or_are_in_the_targets_test_are_dropped(
    job_of, tmp_path, write_data_set
):
    tested = write_data_set(tmp_path / "tested", {"task": "sts"}, {"test.jsonl": build_tested_rows("An exam.")})
    rows = [row("a", "B one", "b, ONE!", "A?", "other", "fine"), row("A", "other", "an exam"), row("z", "y", "x")]
    mixture = read_sources(job_of(rows), open_target(TargetSettings(folder=tested))).build()
    assert list(mixture.negatives) == [("fine",), (), ("x",)]
    assert mixture.reports[0].dropped == {
        "negative that answers its query in another pair, or equals the query": 3,
        "negative of the target's test": 1,
    }


def test_supplied_negatives_that_are_no_texts_are_refused_with_their_line(job_of):
    for negative in (5, [["x"]]):
        with pytest.raises(DataSetError, match="pairs.jsonl line 2.*'negative' must be texts"):
            read_sources(job_of([row("a", "b", "c"), {"anchor": "a", "positive": "c", "negative": negative}])).build()


def test_a_source_without_the_negatives_that_its_settings_require_is_refused(job_of):
    with pytest.raises(DataSetError, match="line 1: no field 'negative'"):
        read_sources(job_of([{"anchor": "a", "positive": "b"}], {"negatives": "given"})).build()
    with pytest.raises(DataSetError, match="no row has a negative that can be used"):
        read_sources(job_of([row("a", "b", "B!", " ")], {"negatives": "given"})).build()
    with pytest.raises(ValueError, match="add settings such as negatives"):
        job_of([row("a", "b")], {"negatives": "mined"})


def test_a_reranking_supplies_its_negatives_only_if_the_settings_ask(tmp_path, write_data_set, job_of):
    rows = [{"query": "a", "positive": ["b"], "negative": ["c", "d"]}]
    folder = write_data_set(tmp_path / "set", {"task": "reranking"}, {"train.jsonl": rows})
    assert read_sources(job_of(source={"folder": folder})).build().negatives == ()
    assert list(read_sources(job_of(source={"folder": folder, "negatives": "given"})).build().negatives) == [("c", "d")]


def test_mined_negatives_are_near_the_query_and_no_known_answers(job_of, search, mined, encoder):
    job = job_of(source={"folder": search}, negatives={"num_negatives": 2, "relative_margin": None})
    negatives = mined(job)
    savings = negatives[QUESTIONS["q1"]]
    assert set(savings) == {DOCUMENTS["d3"], DOCUMENTS["d4"]}  # not d1, its twin d2, nor d9 of the test
    scores = encoder.encode([QUESTIONS["q1"], *savings, DOCUMENTS["d7"]]).vectors
    assert (scores[1:3] @ scores[0]).min() > scores[3] @ scores[0]


class Angles:
    """Stored vectors of texts that are numbers: each unit vector has the number as its first coordinate."""

    def vectors(self, texts):
        cosines = np.array([float(text) for text in texts], np.float32)
        return np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ({"absolute_margin": 0.35}, ["0.3"]),  # up to 0.8 - 0.35
        ({"relative_margin": 0.35}, ["0.5", "0.3"]),  # up to 0.8 (1 - 0.35)
        ({"max_score": 0.55}, ["0.5", "0.3"]),
        ({"range_min": 1}, ["0.5", "0.3"]),
    ],
    ids=str,
)
def test_range_score_and_margins_limit_the_mined_negatives(limit, expected):
    documents = {text: text for text in ("0.8", "0.6", "0.5", "0.3")}
    candidates = Candidates(documents, {"1": "1"}, {"1": {"0.8"}}, set())
    settings = NegativeSettings(**({"relative_margin": None, "num_negatives": 3, "allow_fewer": True} | limit))
    found = mine_negatives(candidates, AuxiliaryEncoder(Angles(), Prompts()), settings, 3, seed=0)
    assert found == {"1": expected}


def test_a_training_positive_of_the_targets_test_is_never_a_mined_negative():
    documents = {text: text for text in ("0.8", "0.6", "0.3")}
    candidates = Candidates(documents, {"1": "1"}, {"1": {"0.8"}}, test_positives={"0.6"})
    settings = NegativeSettings(relative_margin=None, num_negatives=2)
    found = mine_negatives(candidates, AuxiliaryEncoder(Angles(), Prompts()), settings, 2, seed=0)
    assert found == {"1": ["0.3"]}


def test_randomly_sampled_negatives_depend_on_the_seed(job_of, search, mined):
    settings = {"num_negatives": 2, "sampling": "random", "relative_margin": None, "range_max": 5}
    job = job_of(source={"folder": search}, negatives=settings)
    first = mined(job)
    others = [mined(job.model_copy(update={"seed": seed})) for seed in range(1, 4)]
    assert any(other != first for other in others)
    assert mined(job) == first


def test_texts_of_the_targets_test_are_never_mined(job_of, search, mined, tmp_path, write_data_set):
    tested = build_tested_rows(DOCUMENTS["d3"].upper())
    target = write_data_set(tmp_path / "target", {"task": "sts"}, {"test.jsonl": tested})
    job = job_of(source={"folder": search}, negatives={"num_negatives": 2, "relative_margin": None})
    negatives = mined(job, open_target(TargetSettings(folder=target)))
    assert all(DOCUMENTS["d3"] not in some for some in negatives.values())


def test_negatives_of_pairs_are_mined_from_positives_or_a_given_corpus(job_of, mined, tmp_path):
    rows = [{"anchor": QUESTIONS[q], "positive": DOCUMENTS[d]} for q, d, _ in JUDGED]
    settings = {"num_negatives": 1, "relative_margin": None}
    negatives = mined(job_of(rows, negatives=settings))
    assert negatives[QUESTIONS["q1"]] == (DOCUMENTS["d5"],)
    (tmp_path / "corpus.txt").write_text(f"{DOCUMENTS['d9']}\n{DOCUMENTS['d1'].lower()}\n")
    negatives = mined(job_of(rows, {"corpus": tmp_path / "corpus.txt"}, negatives=settings))
    assert negatives[QUESTIONS["q1"]] == (DOCUMENTS["d9"],)
    with pytest.raises(DataSetError, match="the corpus none.txt cannot be read"):
        mined(job_of(rows, {"corpus": tmp_path / "none.txt"}, negatives=settings))


def test_too_few_documents_for_the_negatives_are_refused_unless_allow_fewer_is_set(job_of, mined):
    rows = [{"anchor": QUESTIONS[q], "positive": DOCUMENTS[d]} for q, d, _ in JUDGED]
    settings = {"num_negatives": 3, "relative_margin": None}
    with pytest.raises(
        JobError, match="pairs has 3 distinct documents, too few for a positive and 3 negatives.*allow_fewer: true"
    ):
        mined(job_of(rows, negatives=settings))
    negatives = mined(job_of(rows, negatives=settings | {"allow_fewer": True}))
    assert all(len(some) == 2 for some in negatives.values())
    negatives = mined(job_of(rows[:1], negatives=settings | {"allow_fewer": True}))
    assert negatives == {QUESTIONS["q1"]: ()}


def test_mining_without_a_source_or_room_in_the_range_is_refused(job_of, mined):
    with pytest.raises(JobError, match="no source is to be mined"):
        mined(job_of([row("a", "b", "c")], negatives={}))
    with pytest.raises(ValueError, match="range_max 6 minus range_min 4 must be at least num_negatives, 3"):
        NegativeSettings(range_min=4, range_max=6)
