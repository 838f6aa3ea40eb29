import gzip

import orjson
import pytest

from lathe.training.datasets.data_set import find_pairs
from lathe.training.datasets.folder import FileDataSet, FolderDataSet
from lathe.training.datasets.pairs import PairSettings
from lathe.training.errors import DataSetError

CORPUS = [{"_id": "d1", "title": "T", "text": "one"}, {"_id": 2, "text": "two"}, {"_id": "d3", "text": " "}]
QUERIES = [{"_id": "q1", "text": "first"}, {"_id": 2, "text": "second"}, {"_id": "q3", "text": ""}]
JUDGED = [("q1", "d1", 2), ("q1", "2", 1), ("2", "2", 0), ("2", "d3", 1), ("q3", "d1", 1), ("q9", "d1", 1)]
JUDGED += [("2", "d9", 1)]
LABELLED = [{"text": "a", "label": "up"}, {"text": " ", "label": "up"}, {"text": "b", "label": "down"}]
NUMBERED = [{"text": "a", "label": 0}, {"text": "b", "label": 1}, {"text": "c", "label": 0}]
SAME = [{"sentence1": f"s{n}", "sentence2": f"t{n}", "label": n % 2} for n in range(4)]
SCORED = [{"sentence1": f"s{n}", "sentence2": f"t{n}", "score": n} for n in range(6)]
PAIRS = [{"anchor": "a", "positive": "b"}, {"anchor": "c", "positive": "d"}]
SUMMARIES = [
    {"text": "t", "human_summaries": ["h", "", "i"]},
    {"text": "u", "human_summaries": ["j"], "valid": True},
    {"text": "v", "human_summaries": ["k"], "valid": False},
    {"text": "w", "human_summaries": []},
    {"text": "", "human_summaries": ["l"]},
]
RERANKED = [
    {"query": "a", "positive": ["p", "q"], "negative": ["n"]},
    {"query": "b", "positive": [], "negative": ["n"]},
    {"query": "c", "positive": "r"},
    {"query": "d", "positive": [" "]},
    {"query": " ", "positive": ["s"]},
]
TASKS = {
    "reranking": (
        RERANKED,
        [("a", "p"), ("a", "q"), ("c", "r")],
        {
            "query without a positive": ["train.jsonl line 2", "train.jsonl line 4"],
            "blank text": ["train.jsonl line 5"],
        },
    ),
    "classification": (LABELLED, [("a", "up"), ("b", "down")], {"blank text": ["train.jsonl line 2"]}),
    "clustering": (LABELLED, [("a", "up"), ("b", "down")], {"blank text": ["train.jsonl line 2"]}),
    "pair_classification": (
        SAME,
        [("s1", "t1"), ("s3", "t3")],
        {"labelled 0": ["train.jsonl line 1", "train.jsonl line 3"]},
    ),
    "summarization": (
        SUMMARIES,
        [("t", "h"), ("t", "i"), ("u", "j")],
        {
            "marked as not valid": ["train.jsonl line 3"],
            "document without a summary": ["train.jsonl line 4"],
            "blank text": ["train.jsonl line 5"],
        },
    ),
    "sts": (
        SCORED,
        [("s4", "t4"), ("s5", "t5")],
        {"score below 4": [f"train.jsonl line {line}" for line in range(1, 5)]},
    ),
    "pairs": (PAIRS, [("a", "b"), ("c", "d")], {}),
}
NOT_TEXTS = [
    ("classification", {"text": 5, "label": "x"}, "'text' must be a string, not 5"),
    ("classification", {"text": "a"}, "no field 'label'; it has text"),
    ("classification", {"text": "a", "label": None}, "'label' must be"),
    ("clustering", {"sentences": ["a", "b"], "labels": ["x"]}, "2 sentences and 1 labels"),
    ("clustering", {"sentences": ["a", 5], "labels": ["x", "x"]}, "'text' must be a string, not 5"),
    ("reranking", {"query": "a", "positive": [5]}, "'positive' must be"),
    ("summarization", {"text": "a", "human_summaries": [5]}, "'human_summaries' must be"),
    ("sts", {"sentence1": "a", "sentence2": "b", "score": "5"}, "'score' must be a number, not '5'"),
    ("pair_classification", {"sentence1": "a", "sentence2": "b", "label": 2}, "'label' must be 0 or 1, not 2"),
    ("pairs", {"anchor": "a", "positive": ["b"]}, "'positive' must be a string, not ['b']"),
    ("pairs", {"question": "a", "positive": "b"}, "no field 'anchor'; it has question, positive"),
]


@pytest.fixture
def find(tmp_path, write_data_set):
    """Return a function that writes rows or files as a data set and finds its pairs."""

    def written(task, rows=(), packed="", files=None, qrels=None, **given):
        files = files or {f"train.jsonl{packed}": rows}
        folder = write_data_set(tmp_path / "set", {"task": task}, files, qrels)
        return find_pairs(FolderDataSet("set", task, folder), PairSettings(**given))

    return written


@pytest.fixture
def refusal(find):
    """Return a function that returns the message of the `DataSetError` for a data set."""

    def message(*args, **given):
        with pytest.raises(DataSetError) as caught:
            find(*args, **given)
        return str(caught.value)

    return message


def texts(found):
    return [(pair.anchor, pair.positive) for pair in found.pairs]


@pytest.mark.parametrize("task", TASKS)
def test_find_pairs_keeps_explicit_positives_and_reports_the_dropped_rows(find, task):
    rows, expected, dropped = TASKS[task]
    found = find(task, rows)
    assert texts(found) == expected
    assert found.dropped.places == dropped
    assert (found.split, found.rows) == ("train", len(rows))


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_retrieval_pairs_each_query_with_its_relevant_documents_preceded_by_their_titles(find, packed):
    files = {f"corpus.jsonl{packed}": CORPUS, f"queries.jsonl{packed}": QUERIES}
    found = find("retrieval", files=files, qrels={"train": JUDGED})
    assert texts(found) == [("first", "T one"), ("first", "two")]
    assert {why: len(places) for why, places in found.dropped.places.items()} == {
        "judged not relevant": 1,
        "query missing or blank": 2,
        "document missing or blank": 2,
    }
    assert found.rows == len(JUDGED)


def test_find_pairs_reads_the_train_split_unless_another_is_named(find, refusal):
    files = {f"{split}.jsonl": [PAIRS[place]] for place, split in enumerate(("test", "train"))}
    assert (find("pairs", files=files).split, texts(find("pairs", files=files))) == ("train", [("c", "d")])
    assert texts(find("pairs", files=files, split="test")) == [("a", "b")]
    assert "set has no split 'dev'; it has train, test" in refusal("pairs", files=files, split="dev")


def test_a_data_set_without_a_split_rows_or_positives_is_refused(refusal):
    assert "set has no split to train on" in refusal("pairs", files={"labels.json": []})
    assert "set has no positive pair in train: it has no rows" in refusal("pairs", [])
    assert "set has no positive pair in train: 2 labelled 0" in refusal("pair_classification", SAME[::2])


def test_numeric_labels_need_texts_from_the_settings_or_labels_json(find, refusal, tmp_path):
    labels = {"0": "鹰派", "1": "dovish policy"}
    assert "set has labels without a text ('0', '1')" in refusal("classification", NUMBERED)
    expected = [("a", labels["0"]), ("b", labels["1"]), ("c", labels["0"])]
    assert texts(find("classification", NUMBERED, labels=labels)) == expected
    assert "without a text ('1')" in refusal("classification", NUMBERED, labels={"0": "hawkish"})
    (tmp_path / "set" / "labels.json").write_bytes(orjson.dumps(labels))
    assert texts(find("classification", NUMBERED)) == expected
    assert texts(find("clustering", NUMBERED)) == [("a\nc", labels["0"]), ("b", labels["1"])]
    assert texts(find("classification", NUMBERED, labels={"1": "of the job"}))[1] == ("b", "of the job")


def test_labels_without_letters_and_a_malformed_labels_json_are_refused(refusal, tmp_path, write_data_set):
    for label in ("10", "-1", "3.5", "", "  ", "?"):
        said = refusal("classification", [*LABELLED, {"text": "x", "label": label}])
        assert f"labels without a text ({label!r})" in said
    for written in (b"[1]", b'{"0": 1}', b"{", b"\xff"):
        write_data_set(tmp_path / "set", {}, {"labels.json": [written]})
        assert "labels.json" in refusal("classification", NUMBERED)


@pytest.mark.parametrize(("task", "fields"), [("pairs", ("anchor", "positive")), ("sts", ("sentence1", "sentence2"))])
def test_missing_positives_are_refused_and_their_lines_named(refusal, task, fields):
    anchor, positive = fields
    rows = [{anchor: f"a{n}", positive: f"p{n}", "score": int(n > 0)} for n in range(9)]
    rows[1].pop(positive)
    rows[4][positive] = None
    reason = f"no {positive!r} at train.jsonl line 2, train.jsonl line 5: every pair needs one"
    assert reason in refusal(task, rows)
    rows[6][positive] = rows[7][positive] = " "
    assert "line 2, train.jsonl line 5, train.jsonl line 7 and 1 more: every pair" in refusal(task, rows)


def test_a_missing_second_text_is_accepted_in_a_pair_labelled_0(find):
    rows = [*SAME, {"sentence1": "x", "sentence2": "", "label": 0}]
    assert texts(find("pair_classification", rows)) == [("s1", "t1"), ("s3", "t3")]


@pytest.mark.parametrize(("task", "row", "reason"), NOT_TEXTS)
def test_an_invalid_row_is_refused_with_its_line(refusal, task, row, reason):
    rows = {"classification": LABELLED, "clustering": LABELLED, "reranking": RERANKED, "sts": SCORED}
    rows |= {"summarization": SUMMARIES, "pair_classification": SAME, "pairs": PAIRS}
    message = refusal(task, [*rows[task], row])
    assert reason in message
    assert f"train.jsonl line {len(rows[task]) + 1}" in message


def test_clustering_joins_texts_of_a_label_to_anchors_and_the_rest_to_a_smaller_one(find):
    rows = [{"text": f"{label}{n}", "label": label} for n in range(5) for label in ("red", "blue")]
    assert texts(find("clustering", rows, texts_per_cluster=2)) == [
        (anchor, label)
        for label in ("red", "blue")
        for anchor in (f"{label}0\n{label}1", f"{label}2\n{label}3", f"{label}4")
    ]
    found = find("clustering", rows)
    assert [len(pair.texts) for pair in found.pairs] == [4, 1, 4, 1]
    assert found.pairs[0].parts == ("red0", "red1", "red2", "red3")
    assert found.pairs[2].place == "train.jsonl line 2"


def test_the_minimum_sts_score_is_four_fifths_of_the_scale_unless_set(find, refusal):
    assert [pair.anchor for pair in find("sts", SCORED, min_score=2).pairs] == ["s2", "s3", "s4", "s5"]
    assert len(find("sts", SCORED, min_score=0).pairs) == 6
    halves = [row | {"score": row["score"] / 5 - 1} for row in SCORED]  # -1 to 0: least is -0.2
    assert [pair.anchor for pair in find("sts", halves).pairs] == ["s4", "s5"]
    assert "6 score below 9" in refusal("sts", SCORED, min_score=9)


def test_a_file_of_pairs_is_read_by_the_fields_that_the_settings_name(tmp_path):
    rows = [{"question": "a", "answer": "b"}, {"question": "", "answer": "c"}]
    path = tmp_path / "faq.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(orjson.dumps(row) + b"\n\n" for row in rows)))
    settings = PairSettings(anchor="question", positive="answer")
    found = find_pairs(FileDataSet("faq", path), settings)
    assert (texts(found), found.split, found.rows) == ([("a", "b")], "file", 2)
    assert found.dropped.places == {"blank text": ["faq.jsonl.gz line 3"]}
    assert found.pairs[0].parts == ("a", "b")


def test_a_truncated_gzip_file_and_a_missing_file_are_refused(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(orjson.dumps(row) + b"\n" for row in PAIRS))[:-9])
    for place, reason in ((path, "a.jsonl.gz cannot be read"), (tmp_path / "b.jsonl", "there is no file b.jsonl")):
        with pytest.raises(DataSetError, match=reason):
            find_pairs(FileDataSet("a", place), PairSettings())
