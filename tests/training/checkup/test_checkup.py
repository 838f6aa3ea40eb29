import json

import numpy as np
import pytest

from lathe.training.checkup.checkup import check_up
from lathe.training.checkup.findings import format_recall, format_share
from lathe.training.comparison import Interval
from lathe.training.errors import EmptyError, EncoderError
from tests.training.checkup.words import LossyStore, WordEncoder, known, make_rows, make_texts

TEXTS, ENCODER = make_texts(300), WordEncoder()


def check(store, encoder=None, queries=None):
    steps = []
    found = check_up(store, encoder, queries, lambda part, message: steps.append(part))
    assert steps == sorted(steps) and 0 <= steps[0] <= steps[-1] <= 1
    json.dumps(found.to_json(), allow_nan=False)  # plain types alone
    return found


@pytest.fixture
def vectors():
    return ENCODER.encode(TEXTS, "document").vectors


def test_a_sound_store_has_nothing_to_fix(vectors):
    found = check(LossyStore(make_rows(vectors, TEXTS), (0,)), known(ENCODER))
    assert not found.must_fix and {finding.severity for finding in found.findings} == {"fine"}
    assert found.summary == "Recall@10 is 1.00. No loss was found."
    assert found.searches.queries == 200


def test_what_must_be_fixed_comes_first_and_the_summary_divides_the_loss(vectors):
    vectors[::10] = WordEncoder(1).encode(TEXTS[::10], "document").vectors
    found = check(LossyStore(make_rows(vectors, TEXTS), (2,)), known(ENCODER))
    assert found.must_fix and [finding.kind for finding in found.findings][:2] == ["other_encoder", "graph"]
    assert found.summary.startswith("Recall@10 is .7")
    assert "It loses .20 by approximate search, .08" in found.summary and found.summary.endswith("another encoder.")


def test_vectors_alone_have_no_searches(vectors):
    found = check(LossyStore(make_rows(vectors)))
    assert found.searches is None and found.summary.startswith("Nothing must be fixed.")
    vectors[4] = 0
    assert check(LossyStore(make_rows(vectors))).summary.startswith("Something must be fixed.")


def test_a_store_of_few_or_broken_rows_is_checked(vectors):
    assert check(LossyStore(make_rows(vectors[:3]), (0,))).searches.queries == 3
    assert check(LossyStore(make_rows(0 * vectors[:30]), (0,))).searches is None
    with pytest.raises(EmptyError, match="no vectors"):
        make_rows(vectors[:0])


def test_texts_that_are_not_there_are_said_to_be_missing(vectors):
    found = check(LossyStore(make_rows(vectors, [None] * 300), (0,)), known(ENCODER))
    assert [finding.sentence for finding in found.findings if finding.kind == "space"] == [
        "No row read has a text where --texts names it."
    ]


def test_queries_of_other_dimensions_are_refused(vectors):
    with pytest.raises(EncoderError, match="the queries have 3 dimensions, and the rows have 64"):
        check(LossyStore(make_rows(vectors)), None, np.ones((5, 3), np.float32))


def test_shares_and_recalls_are_written_for_reading():
    assert format_share(Interval(1.0, None, None)) == "100 %"
    assert format_share(Interval(0.99996, 0.98, 1.0)) == "100 % (98 to 100)"
    assert format_share(Interval(0.0312, 0.022, 0.0441)) == "3.12 % (2.2 to 4.41)"
    assert format_recall(Interval(1.0, None, None)) == "1.00"
    assert format_recall(Interval(0.0634, 0.0401, 0.0799)) == ".06 (.04 to .08)"
    assert format_recall(Interval(-0.002, -0.01, 0.004)) == ".00 (.00 to .00)"
