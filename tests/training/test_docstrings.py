import hashlib
import json
import re
import subprocess
import sys

import pytest

from training.sources.docstrings import (
    MAX_CHARACTERS,
    MIN_CHARACTERS,
    distinct_paragraphs,
    read_docstring_paragraphs,
    read_topic_paragraphs,
)

COMMON = {"the", "a", "an", "of", "to", "is", "in", "and", "for", "if", "or", "be", "this", "that", "it", "by"}

DIGEST = """
import hashlib, json
from training.sources.docstrings import read_docstring_paragraphs, read_topic_paragraphs
print(hashlib.sha256(json.dumps([read_docstring_paragraphs(), read_topic_paragraphs()]).encode()).hexdigest())
"""


@pytest.fixture(params=[read_docstring_paragraphs, read_topic_paragraphs])
def paragraphs(request):
    return request.param()


def test_paragraphs_are_many_and_distinct(paragraphs):
    assert len(paragraphs) > 1000
    assert len(set(paragraphs)) == len(paragraphs)


def test_paragraphs_keep_to_the_band_of_lengths_and_to_one_line(paragraphs):
    assert MIN_CHARACTERS <= min(map(len, paragraphs))
    assert max(map(len, paragraphs)) <= MAX_CHARACTERS
    assert all(paragraph == " ".join(paragraph.split()) for paragraph in paragraphs)


def test_paragraphs_are_english(paragraphs):
    words = [set(re.findall(r"[a-z]+", paragraph.lower())) for paragraph in paragraphs]
    assert sum(bool(found & COMMON) for found in words) > 0.9 * len(words)
    characters = "".join(paragraphs)
    assert sum(c.isalpha() or c == " " for c in characters) > 0.85 * len(characters)


def test_the_language_reference_is_other_text_than_the_docstrings():
    docstrings, topics = set(read_docstring_paragraphs()), set(read_topic_paragraphs())
    assert len(docstrings & topics) < 0.01 * len(topics)


@pytest.mark.trial
def test_another_process_with_another_hash_seed_and_strict_warnings_finds_the_same_paragraphs():
    here = hashlib.sha256(json.dumps([read_docstring_paragraphs(), read_topic_paragraphs()]).encode()).hexdigest()
    there = subprocess.run(
        [sys.executable, "-W", "error", "-c", DIGEST],
        env={"PYTHONHASHSEED": "7", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == here


def test_paragraphs_end_at_blank_lines_and_repetitions_go():
    long, other = "word " * 20, "another " * 20
    assert distinct_paragraphs([f"{long}\n\n  {other}\n\ntoo short", long, "x" * (MAX_CHARACTERS + 1)]) == [
        long.strip(),
        other.strip(),
    ]


def test_the_ends_of_the_band_belong_to_it():
    lengths = [MIN_CHARACTERS - 1, MIN_CHARACTERS, MAX_CHARACTERS, MAX_CHARACTERS + 1]
    assert [len(text) for text in distinct_paragraphs("x" * length for length in lengths)] == [
        MIN_CHARACTERS,
        MAX_CHARACTERS,
    ]
