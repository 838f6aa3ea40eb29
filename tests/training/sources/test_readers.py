import pytest

from lathe.training.sources.readers import (
    BUILT_IN,
    MAX_CHARACTERS,
    MIN_CHARACTERS,
    extract_paragraphs,
    read_docstring_paragraphs,
    read_topic_paragraphs,
)
from lathe.training.sources.source import open_source


@pytest.fixture(params=[read_docstring_paragraphs, read_topic_paragraphs])
def paragraphs(request):
    return request.param()


def test_paragraphs_are_over_1000_distinct_single_lines_of_allowed_length(paragraphs):
    assert 1000 < len(set(paragraphs)) == len(paragraphs)
    assert MIN_CHARACTERS <= min(map(len, paragraphs))
    assert max(map(len, paragraphs)) <= MAX_CHARACTERS
    assert all(paragraph == " ".join(paragraph.split()) for paragraph in paragraphs)


def test_topic_paragraphs_share_less_than_1_percent_with_docstring_paragraphs():
    docstrings, topics = set(read_docstring_paragraphs()), set(read_topic_paragraphs())
    assert len(docstrings & topics) < 0.01 * len(topics)


def test_distinct_paragraphs_splits_at_blank_lines_and_drops_repeated_short_and_long_ones():
    long, other = "word " * 20, "another " * 20
    assert extract_paragraphs([f"{long}\n\n  {other}\n\ntoo short", long, "x" * (MAX_CHARACTERS + 1)]) == [
        long.strip(),
        other.strip(),
    ]


def test_the_built_in_sources_count_their_texts():
    for written in BUILT_IN:
        source = open_source(written)
        assert (source.kind(), source.name) == ("texts", written)
        assert sum(len(batch) for batch in source.batches()) == source.count() > 100
