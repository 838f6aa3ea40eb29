import argparse
import pathlib
import statistics
from pathlib import Path

import pytest

from training.errors import JobError
from training.sources.docstrings import distinct_paragraphs, read_docstrings
from training.synthesis.held_out import HeldOut, read_held_out
from training.synthesis.job import HeldOutSettings
from training.synthesis.near_duplicates import NearDuplicates, jaccard, shingles, words

TEXT = "The central bank left its rates where they were because prices rose less than it had feared in spring."


@pytest.fixture(scope="module")
def real_texts():
    """Distinct real texts, of the standard library."""
    files = [Path(module.__file__) for module in (argparse, pathlib, statistics)]
    return [
        text
        for text in distinct_paragraphs(text for file in files for text in read_docstrings(file))
        if len(words(text)) > 12
    ]


def test_words_are_the_same_whatever_case_and_punctuation():
    assert words("The BANK's rates—again!") == ["the", "bank", "s", "rates", "again"]


def test_characters_of_chinese_and_japanese_are_words():
    assert words("債券 is 2 words") == ["債", "券", "is", "2", "words"] and len(shingles("什么是债券")) == 3


def test_the_index_of_jaccard_is_what_is_shared_of_all():
    assert jaccard(shingles("a b c d"), shingles("a b c e")) == pytest.approx(1 / 3)
    assert shingles("Yes, no") == {"yes no"} and shingles("") == {""}


def test_a_text_with_a_changed_word_is_near_and_says_how_near():
    near = NearDuplicates(0.5)
    near.add("Something else entirely, which has nothing to do with it whatsoever.")
    near.add(TEXT)
    found = near.find_closest(TEXT.replace("spring", "summer").upper())
    assert found == (TEXT, pytest.approx(16 / 18))  # of 17 runs the last one is another
    assert near.find_closest(TEXT.replace(" ", " not ")) is None


def test_among_real_texts_what_is_found_is_what_comparing_all_of_them_finds(real_texts):
    near, found, truth = NearDuplicates(0.6), [], []
    for text in real_texts:
        alike = ((other, jaccard(shingles(text), shingles(other))) for other in near.texts)
        best = max(alike, key=lambda one: one[1], default=("", 0.0))
        truth.append(best if best[1] >= 0.6 else None)
        found.append(near.find_closest(text))
        near.add(text)
    assert found == truth and 0 < sum(one is not None for one in truth) < len(real_texts) / 2


def test_real_texts_are_found_with_a_word_changed(real_texts):
    near = NearDuplicates(0.6)
    for text in real_texts:
        near.add(text)
    assert all(near.find_closest(" ".join([*words(text)[:-1], "changed"])) is not None for text in real_texts)


def held_out(*texts, similarity=0.5):
    return HeldOut({"tests": list(texts)}, similarity, 13)


def test_the_same_text_is_known_whatever_its_case():
    match = held_out("What is a bond?").find_matches(["Who?", "what IS a bond"])[1]
    assert (match.test_set, match.theirs, match.how) == ("tests", "What is a bond?", "the same text")


def test_nearly_the_same_text_is_known():
    matches = held_out(TEXT).find_matches([TEXT.replace("spring", "summer")])
    assert matches[0].how == "nearly the same text, 0.89 alike"


def test_thirteen_words_in_a_row_are_known_and_twelve_are_not():
    spoken = TEXT.split()
    passages = [
        " ".join(["before", *spoken[2 : 2 + count], "and", *"this goes on about other things".split()])
        for count in (12, 13)
    ]
    matches = held_out(f"{TEXT} " + "It said so on another day too, at length and in detail. " * 5).find_matches(
        passages
    )
    assert matches.keys() == {1} and matches[1].how.startswith("13 words in a row: bank left its rates")


def test_without_test_sets_nothing_is_known():
    assert HeldOut({}, 0.5, 13).find_matches([TEXT]) == {}


def test_every_text_of_a_file_is_read_or_those_of_its_fields(tmp_path, write_lines):
    path = write_lines(tmp_path / "t.jsonl", [{"a": "one", "b": ["two", "three", 4], "c": 5}, {"a": "four", "b": []}])
    for fields, count in (((), 4), (("a",), 2), (("b",), 2)):
        assert read_held_out([HeldOutSettings(jsonl=path, fields=fields)], 0.5, 13).counts == {"t": count}


def test_the_tests_of_a_suite_are_read_and_not_what_is_trained_on(tmp_path, write_data_set):
    rows = [{"text": f"{split} {n}", "label": n % 2} for split in ("train", "test") for n in range(4)]
    write_data_set(tmp_path / "s" / "c", {"task": "classification"}, {"train.jsonl": rows[:4], "test.jsonl": rows[4:]})
    write_data_set(
        tmp_path / "s" / "r",
        {"task": "retrieval"},
        {"corpus.jsonl": [{"_id": "d", "title": "T", "text": "doc"}], "queries.jsonl": [{"_id": "q", "text": "asked"}]},
        {"test": [("q", "d", 1)]},
    )
    found = read_held_out([HeldOutSettings(folder=tmp_path / "s")], 0.5, 13)
    assert found.counts == {"c": 4, "r": 3}
    assert found.find_matches(["train 0", "test 0", "t DOC", "asked?"]).keys() == {1, 2, 3}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"jsonl": "none.jsonl"}, "the test set none.jsonl cannot be read: there is no file"),
        ({"folder": "none"}, "the test set none cannot be read: there is no folder"),
        ({"jsonl": "empty.jsonl"}, "empty.jsonl cannot be read: it holds no text"),
        ({"jsonl": "torn.jsonl"}, "torn.jsonl line 1: not JSON"),
        ({"jsonl": "rows.jsonl", "fields": ["b"]}, "rows.jsonl line 1: no field 'b'; it has a"),
        ({"folder": "suite"}, "the test set suite cannot be read: broken: META.json must be an object"),
    ],
)
def test_a_test_set_that_cannot_be_read_is_an_error(tmp_path, write_lines, write_data_set, given, message):
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "torn.jsonl").write_text("{")
    write_lines(tmp_path / "rows.jsonl", [{"a": "text"}])
    write_data_set(tmp_path / "suite" / "broken", b"[]", {"test.jsonl": [{}]})
    places = {name: tmp_path / value if name != "fields" else value for name, value in given.items()}
    with pytest.raises(JobError, match=message.replace("[", r"\[")):
        read_held_out([HeldOutSettings(**places)], 0.5, 13)
