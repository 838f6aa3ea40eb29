import argparse
import pathlib
import statistics
from pathlib import Path

import pytest

from lathe.training.errors import JobError
from lathe.training.sources.readers import extract_paragraphs, read_docstrings
from lathe.training.synthesis.held_out import HeldOutIndex, read_held_out_texts
from lathe.training.synthesis.job import HeldOutSettings
from lathe.training.synthesis.near_duplicates import NearDuplicates, compute_jaccard, split_shingles, split_words

TEXT = "The central bank left its rates where they were because prices rose less than it had feared in spring."


@pytest.fixture(scope="module")
def real_texts():
    """Return distinct real texts from the standard library."""
    files = [Path(module.__file__) for module in (argparse, pathlib, statistics)]
    return [
        text
        for text in extract_paragraphs(text for file in files for text in read_docstrings(file))
        if len(split_words(text)) > 12
    ]


def test_find_closest_equals_comparing_all_pairs_of_real_texts(real_texts):
    near, found, truth = NearDuplicates(0.6), [], []
    for text in real_texts:
        alike = ((other, compute_jaccard(split_shingles(text), split_shingles(other))) for other in near.texts)
        best = max(alike, key=lambda one: one[1], default=("", 0.0))
        truth.append(best if best[1] >= 0.6 else None)
        found.append(near.find_closest(text))
        near.add(text)
    assert found == truth and 0 < sum(one is not None for one in truth) < len(real_texts) / 2


def build_held_out(*texts, similarity=0.5):
    return HeldOutIndex({"tests": list(texts)}, similarity, 13)


def test_find_matches_finds_a_near_duplicate_of_a_held_out_text():
    matches = build_held_out(TEXT).find_matches([TEXT.replace("spring", "summer")])
    assert matches[0].how == "nearly the same text, similarity 0.89"


def test_find_matches_finds_13_shared_words_in_a_row_but_not_12():
    spoken = TEXT.split()
    passages = [
        " ".join(["before", *spoken[2 : 2 + count], "and", *"this goes on about other things".split()])
        for count in (12, 13)
    ]
    matches = build_held_out(f"{TEXT} " + "It said so on another day too, at length and in detail. " * 5).find_matches(
        passages
    )
    assert matches.keys() == {1} and matches[1].how.startswith("13 words in a row: bank left its rates")


def test_read_held_out_reads_all_texts_of_a_file_or_those_of_the_given_fields(tmp_path, write_lines):
    path = write_lines(tmp_path / "t.jsonl", [{"a": "one", "b": ["two", "three", 4], "c": 5}, {"a": "four", "b": []}])
    for fields, count in (((), 4), (("a",), 2), (("b",), 2)):
        assert read_held_out_texts([HeldOutSettings(jsonl=path, fields=fields)], 0.5, 13).counts == {"t": count}


def test_read_held_out_reads_the_tests_of_a_suite_and_no_training_rows(tmp_path, write_data_set):
    rows = [{"text": f"{split} {n}", "label": n % 2} for split in ("train", "test") for n in range(4)]
    write_data_set(tmp_path / "s" / "c", {"task": "classification"}, {"train.jsonl": rows[:4], "test.jsonl": rows[4:]})
    write_data_set(
        tmp_path / "s" / "r",
        {"task": "retrieval"},
        {"corpus.jsonl": [{"_id": "d", "title": "T", "text": "doc"}], "queries.jsonl": [{"_id": "q", "text": "asked"}]},
        {"test": [("q", "d", 1)]},
    )
    found = read_held_out_texts([HeldOutSettings(folder=tmp_path / "s")], 0.5, 13)
    assert found.counts == {"c": 4, "r": 3}
    assert found.find_matches(["train 0", "test 0", "t DOC", "asked?"]).keys() == {1, 2, 3}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"jsonl": "none.jsonl"}, "the test set none.jsonl cannot be read: there is no file"),
        ({"jsonl": "empty.jsonl"}, "empty.jsonl cannot be read: it holds no text"),
        ({"jsonl": "torn.jsonl"}, "torn.jsonl line 1: not JSON"),
        ({"jsonl": "rows.jsonl", "fields": ["b"]}, "rows.jsonl line 1: no field 'b'; it has a"),
        ({"folder": "suite"}, "the test set suite cannot be read: broken: META.json must be an object"),
    ],
)
def test_read_held_out_refuses_a_test_set_that_cannot_be_read(tmp_path, write_lines, write_data_set, given, message):
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "torn.jsonl").write_text("{")
    write_lines(tmp_path / "rows.jsonl", [{"a": "text"}])
    write_data_set(tmp_path / "suite" / "broken", b"[]", {"test.jsonl": [{}]})
    places = {name: tmp_path / value if name != "fields" else value for name, value in given.items()}
    with pytest.raises(JobError, match=message.replace("[", r"\[")):
        read_held_out_texts([HeldOutSettings(**places)], 0.5, 13)
