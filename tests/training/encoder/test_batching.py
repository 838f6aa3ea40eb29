import threading
from contextlib import closing

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lathe.training.encoder.batching import (
    estimate_tokens,
    map_in_threads,
    prefetch,
    split_padded_batches,
    split_unpadded_batches,
)
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER

LENGTHS = st.lists(st.integers(1, 60), max_size=40)
BUDGET = st.integers(1, 200)
SLACK = st.integers(0, 100)


def rows(runs, count):
    """Return every position that the slices cover."""
    return [place for run in runs for place in range(count)[run]]


@given(lengths=LENGTHS, budget=BUDGET, slack=SLACK)
def test_split_padded_batches_holds_every_text_once_and_as_many_as_fit_budget_and_slack(lengths, budget, slack):
    lengths = sorted(lengths, reverse=True)
    runs = list(split_padded_batches(lengths, budget, slack))
    assert rows(runs, len(lengths)) == list(range(len(lengths)))
    for run in runs:
        some = lengths[run]
        assert len(some) == 1 or len(some) * some[0] <= budget
        assert len(some) * some[0] - sum(some) <= slack
    for run in runs[:-1]:
        wider = lengths[run.start : run.stop + 1]
        assert len(wider) * wider[0] > budget or len(wider) * wider[0] - sum(wider) > slack


@given(lengths=LENGTHS, budget=BUDGET)
def test_split_unpadded_batches_holds_every_text_once_and_as_many_as_fit_the_budget(lengths, budget):
    runs = list(split_unpadded_batches(lengths, budget))
    assert rows(runs, len(lengths)) == list(range(len(lengths)))
    for run in runs:
        assert run.stop - run.start == 1 or sum(lengths[run]) <= budget
    for run in runs[:-1]:
        assert sum(lengths[run.start : run.stop + 1]) > budget


def test_estimate_tokens_is_within_a_factor_of_two_and_at_most_the_limit(encoder):
    texts = ["A lathe turns wood or metal against a cutting tool.", "word " * 100, "東京は日本の首都です。" * 5]
    counted = encoder.encode(texts).tokens
    estimates = np.array([estimate_tokens(text, encoder.max_length) for text in texts])
    assert (estimates / counted > 0.5).all() and (estimates / counted < 2).all()
    assert estimate_tokens("x" * 10**6, 256) == 256
    assert estimate_tokens("", 256) == encoder.encode([""]).tokens[0]
    assert estimate_tokens("\ud800", 256) == 2  # half a character, as some JSON has it


TEXTS = [f"{word} {number} of the {word}s " * (1 + number % 7) for number in range(60) for word in ("lathe", "ledger")]


@pytest.fixture
def torch_threads():
    """Return a function that sets the number of threads of torch until the test ends."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_item_comes_once_and_in_order_with_its_result(torch_threads, threads):
    torch_threads(threads)
    for count in (0, 1, 2, 20):
        assert list(map_in_threads(lambda item: item**2, iter(range(count)))) == [(n, n**2) for n in range(count)]
    assert torch.get_num_threads() == threads


def test_items_run_at_once_on_one_core_each(torch_threads):
    torch_threads(2)
    meeting = threading.Barrier(2, timeout=60)

    def work(_):
        meeting.wait()
        return torch.get_num_threads()

    assert [result for _, result in map_in_threads(work, range(6))] == [1] * 6


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_is_raised_and_the_number_of_threads_is_restored(torch_threads, threads):
    torch_threads(threads)
    with pytest.raises(ZeroDivisionError), closing(map_in_threads(lambda n: 1 / (3 - n), range(9))) as results:
        for n, result in results:
            assert result == 1 / (3 - n) and n < 3
    assert torch.get_num_threads() == threads


@pytest.mark.release
def test_vectors_are_those_of_one_thread(torch_threads):
    encoder = Encoder(DEFAULT_ENCODER, "cpu")
    torch_threads(1)
    expected, seen = encoder.encode(TEXTS), []
    torch_threads(2)
    found = encoder.encode(TEXTS, on_batch=seen.append)
    np.testing.assert_allclose(found.vectors, expected.vectors, atol=1e-6)
    assert (found.tokens == expected.tokens).all() and found.padded == expected.padded
    assert seen == sorted(seen) and seen[-1] == len(TEXTS) and len(seen) > 2


def test_the_next_item_is_made_while_the_caller_works_on_one():
    made = [threading.Event() for _ in range(3)]

    def make():
        for number, event in enumerate(made):
            event.set()
            yield number

    for number in prefetch(make()):
        assert number == 2 or made[number + 1].wait(60)
    assert list(prefetch(iter([]))) == [] and list(prefetch([None, 1])) == [None, 1]
