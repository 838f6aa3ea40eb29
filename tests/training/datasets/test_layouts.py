import re

import pytest

from lathe.training.datasets.layouts import LAYOUTS
from lathe.training.datasets.records import Search, Warnings
from lathe.training.errors import DataSetError

LABELS = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}, {"text": "c", "label": "x"}, b"", b"  "]
LABELS += [{"text": "d", "label": "y"}]
STS = [{"sentence1": "a", "sentence2": "b", "score": 1}, {"sentence1": "c", "sentence2": "d", "score": 2.5}]
PAIRS = [{"anchor": "a", "positive": "b"}, {"anchor": "c", "positive": "b"}, {"anchor": "a", "positive": "d"}]
SUMMARY = {"text": "t", "human_summaries": ["h"], "machine_summaries": ["m", "n"], "relevance": [1, 2]}
RERANKED = [
    {"query": "a", "positive": ["p"], "negative": ["n", "o"]},
    {"query": "b", "positive": ["o"], "negative": ["p"]},
]
CORPUS = [{"_id": "d1", "title": "T", "text": "one"}, {"_id": 2, "text": "two"}, {"_id": "d3", "text": "three"}]
QUERIES = [{"_id": "q1", "text": "first"}, {"_id": 2, "text": "second"}]
JUDGED = [("q1", "d1", 2), ("q1", "d3", 0), ("2", "2", 1)]
BAD_LINES = [
    ("sts", [STS[0], b'{"sentence1": '], "test.jsonl line 2: not JSON: "),
    ("sts", [STS[0], b"\xff\xfe"], "test.jsonl line 2: not JSON: "),
    ("sts", [STS[0], b"[1]"], "test.jsonl line 2: not an object"),
    ("sts", [b"", b"", {"sentence1": "a"}], "test.jsonl line 3: no field 'sentence2'; it has sentence1"),
    ("sts", [STS[0] | {"sentence2": 5}], "test.jsonl line 1: 'sentence2' must be a string, not 5"),
    ("sts", [STS[0] | {"score": "5"}], "test.jsonl line 1: 'score' must be a number, not '5'"),
    (
        "clustering",
        [LABELS[0], {"text": "a", "label": None}],
        "line 2: 'label' must be a class: a string or a whole number, not None",
    ),
    ("reranking", [RERANKED[0] | {"negative": ["n", 1]}], "line 1: 'negative' must be a list of strings, not ['n', 1]"),
    ("summarization", [SUMMARY | {"relevance": ["1", 2]}], "'relevance' must be a list of numbers, not ['1', 2]"),
    ("summarization", [SUMMARY, SUMMARY | {"relevance": [1]}], "line 2: 2 machine summaries and 1 grades"),
    ("pair_classification", [STS[0] | {"label": 2}], "test.jsonl line 1: 'label' must be 0 or 1, not 2"),
]
NOTHING_TO_MEASURE = [
    ("sts", [], "test.jsonl has no rows"),
    ("sts", [STS[0] | {"sentence1": "  "}], "test.jsonl has only rows with blank texts"),
    ("sts", [STS[0], STS[0]], "test.jsonl has the same score for every pair"),
    ("clustering", [LABELS[0], LABELS[2]], "test.jsonl has only one label"),
    ("pair_classification", [STS[0] | {"label": 1}, STS[1] | {"label": 1}], "test.jsonl has only one label"),
    ("reranking", [RERANKED[0] | {"negative": [" "]}], "no query with a positive and a negative document"),
    ("summarization", [SUMMARY | {"human_summaries": []}], "no row with a human summary and two machine summaries"),
]


@pytest.fixture
def read(tmp_path, write_data_set):
    """Return a function that writes rows as a data set and reads them by its layout, with the warnings."""

    def written(task, packed="", qrels=None, **files):
        files = {f"{stem}.jsonl{packed}": rows for stem, rows in files.items()}
        found = Warnings()
        return LAYOUTS[task].read_test(write_data_set(tmp_path, None, files, qrels), found), found.to_sentences()

    return written


@pytest.fixture
def retrieve(read):
    """Return a function that reads a retrieval data set, with the given parts replaced."""

    def written(judged=JUDGED, splits=None, corpus=CORPUS, queries=QUERIES):
        return read("retrieval", qrels={"test": judged, **(splits or {})}, corpus=corpus, queries=queries)

    return written


@pytest.fixture
def refusal(read):
    """Return a function that returns the message of the `DataSetError` for a data set."""

    def message(*args, **rows):
        with pytest.raises(DataSetError) as caught:
            read(*args, **rows)
        return str(caught.value)

    return message


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_retrieval_reads_titles_numeric_ids_and_graded_judgements(read, packed):
    data, warnings = read("retrieval", packed, {"test": JUDGED}, corpus=CORPUS, queries=QUERIES)
    assert data == Search(
        corpus={"d1": ("T", "one"), "2": ("", "two"), "d3": ("", "three")},
        queries={"q1": "first", "2": "second"},
        relevant={"q1": {"d1": 2, "d3": 0}, "2": {"2": 1}},
    )
    assert warnings == []


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_reranking_keeps_equal_documents_once_and_ranks_those_of_each_query(read, packed):
    data, warnings = read("reranking", packed, test=RERANKED)
    texts = {key: text for key, (_, text) in data.corpus.items()}
    assert sorted(texts.values()) == ["n", "o", "p"]
    assert list(data.queries.values()) == ["a", "b"]
    assert [{texts[key] for key in judged} for judged in data.relevant.values()] == [{"p"}, {"o"}]
    assert [{texts[key] for key in ranked} for ranked in data.ranked.values()] == [{"n", "o", "p"}, {"o", "p"}]
    assert warnings == []


def test_pairs_make_each_positive_one_document_and_merge_equal_anchors(read):
    data, warnings = read("pairs", test=PAIRS)
    texts = {key: text for key, (_, text) in data.corpus.items()}
    assert list(texts.values()) == ["b", "d"]
    found = {data.queries[query]: {texts[key] for key in judged} for query, judged in data.relevant.items()}
    assert found == {"a": {"b", "d"}, "c": {"b"}}
    assert (data.ranked, warnings) == (None, [])


@pytest.mark.parametrize(("task", "rows", "reason"), BAD_LINES)
def test_an_invalid_row_is_refused_with_its_file_and_line(refusal, task, rows, reason):
    assert reason in refusal(task, test=rows)


@pytest.mark.parametrize(("task", "rows", "reason"), NOTHING_TO_MEASURE)
def test_read_test_refuses_data_with_nothing_to_measure(refusal, task, rows, reason):
    assert reason in refusal(task, test=rows)


def test_training_rows_of_one_label_are_refused_and_the_label_is_named(refusal):
    assert "train.jsonl has only one label, 'x'" in refusal("classification", train=LABELS[:1] * 2, test=LABELS)


@pytest.mark.parametrize("task", ["retrieval", "classification", "sts"])
def test_a_missing_file_of_any_layout_is_refused_with_its_name(read, tmp_path, data_set_of, task):
    folder = data_set_of(task)
    files = [path for path in folder.rglob("*") if path.suffix in (".jsonl", ".tsv")]
    for path in files:
        kept = path.read_bytes()
        path.unlink()
        with pytest.raises(DataSetError, match=f"{re.escape(path.name)} is missing"):
            LAYOUTS[task].read_test(folder, Warnings())
        path.write_bytes(kept)
    LAYOUTS[task].read_test(folder, Warnings())


@pytest.mark.parametrize("stem", ["corpus", "queries"])
def test_a_repeated_id_is_dropped_for_equal_rows_and_refused_for_different_ones(retrieve, stem):
    rows = {"corpus": CORPUS, "queries": QUERIES}[stem]
    data, warnings = retrieve(**{stem: [*rows, rows[1]]})
    assert data == retrieve()[0]
    assert warnings == [
        f"rows left out because they repeat '_id' and content of another row: {stem}.jsonl line {len(rows) + 1}"
    ]
    reason = f"{stem}.jsonl line {len(rows) + 1}: the _id '2' is also at {stem}.jsonl line 2 with other content"
    with pytest.raises(DataSetError, match=re.escape(reason)):
        retrieve(**{stem: [*rows, rows[1] | {"text": "else"}]})


def test_judgements_of_missing_queries_and_documents_are_dropped_with_a_warning(retrieve):
    data, warnings = retrieve([*JUDGED, ("q9", "d1", 1), ("q1", "d9", 1)])
    assert data == retrieve()[0]
    assert warnings == [
        "judgements left out because their query is missing: qrels/test.tsv line 5 (q9)",
        "judgements left out because their document is missing: qrels/test.tsv line 6 (d9)",
    ]


def test_a_query_without_judgements_is_dropped_with_a_warning(retrieve):
    """There is no warning if another split judges the query."""
    queries = [*QUERIES, {"_id": "q3", "text": "third"}]
    data, warnings = retrieve(queries=queries)
    assert warnings == ["queries left out because qrels has no judgement for them: q3 (queries.jsonl line 3)"]
    assert data == retrieve()[0]
    assert retrieve(queries=queries, splits={"train": [("q3", "d1", 1)]}) == (data, [])


def test_queries_without_a_relevant_document_are_dropped_and_refused_if_none_remains(retrieve):
    data, warnings = retrieve([*JUDGED[:2], ("2", "2", 0)])
    assert list(data.queries) == list(data.relevant) == ["q1"]
    assert warnings == ["queries left out because no document is judged relevant: 2"]
    with pytest.raises(DataSetError, match="judges no document relevant to any query"):
        retrieve([("2", "2", 0)])


def test_a_malformed_judgement_is_refused_by_file_and_line(retrieve):
    for line in ("q1 d1 1", "q1\td1", "q1\td1\tgood", "q1\td1\tnan", "q1\td1\tinf", "q1\td1\t1\t1"):
        with pytest.raises(DataSetError, match=re.escape("qrels/test.tsv line 3 must hold query-id")) as caught:
            retrieve([JUDGED[0], line])
        assert repr(line) in str(caught.value)


def test_qrels_may_lack_a_header_but_not_rows(retrieve, tmp_path):
    whole = retrieve()
    judgements = tmp_path / "qrels" / "test.tsv"
    header, rows = judgements.read_text().split("\n", 1)
    judgements.write_text(rows)
    assert LAYOUTS["retrieval"].read_test(tmp_path, Warnings()) == whole[0]
    spaced = "\ufeff" + rows.replace("\t", " \t ").replace("\n", " \r\n")  # as spreadsheets write them
    judgements.write_bytes(spaced.encode())
    assert LAYOUTS["retrieval"].read_test(tmp_path, Warnings()) == whole[0]
    judgements.write_text(header)
    with pytest.raises(DataSetError, match="test.tsv has no rows"):
        LAYOUTS["retrieval"].read_test(tmp_path, Warnings())


def test_a_warning_names_labels_that_occur_once_or_only_in_the_test(read):
    once = {"text": "e", "label": 7}
    _, warnings = read("classification", train=LABELS, test=[*LABELS, once])
    assert warnings == [
        "labels that occur once in test: '7' (test.jsonl line 7)",
        "label '7' is tested but never trained on: test.jsonl line 7",
    ]
    assert read("clustering", test=[once, *LABELS])[1] == ["labels that occur once in test: '7' (test.jsonl line 1)"]


def test_a_row_with_a_blank_text_is_dropped_and_its_line_named(read):
    blank = STS[0] | {"sentence2": " \t\n"}
    whole, _ = read("sts", test=STS)
    assert read("sts", test=[blank, *STS, blank]) == (
        whole,
        ["rows left out because 'sentence2' holds only spaces: test.jsonl line 1, test.jsonl line 4"],
    )


def test_a_document_is_dropped_only_if_both_text_and_title_are_blank(retrieve):
    data, warnings = retrieve(corpus=[*CORPUS, {"_id": "t", "title": "T", "text": " "}, {"_id": "b", "text": " "}])
    assert data.corpus["t"] == ("T", " ")
    assert "b" not in data.corpus
    assert warnings == ["documents left out because they hold only spaces: corpus.jsonl line 5"]


def test_blank_candidates_and_rows_with_blank_summaries_are_dropped_and_their_lines_named(read):
    blank = {"query": "c", "positive": ["p"], "negative": [" ", "n"]}
    data, warnings = read("reranking", test=[*RERANKED, blank, blank | {"positive": []}])
    assert [len(ranked) for ranked in data.ranked.values()] == [3, 2, 2]
    assert warnings == [
        "documents left out because they hold only spaces: test.jsonl line 3, test.jsonl line 4",
        "queries left out because they have no positive or no negative document: test.jsonl line 4",
    ]
    alone, spaces = SUMMARY | {"human_summaries": []}, SUMMARY | {"machine_summaries": ["m", " "]}
    data, warnings = read("summarization", test=[alone, SUMMARY, spaces])
    assert data.splits["test"]["text"] == ["t"]
    assert warnings == [
        "rows left out because they have no human or fewer than two machine summaries: test.jsonl line 1",
        "rows left out because a summary holds only spaces: test.jsonl line 3",
    ]
