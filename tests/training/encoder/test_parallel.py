import threading
from contextlib import closing

import numpy as np
import pytest
import torch

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.parallel import map_in_threads, prefetch
from lathe.training.encoder.spec import DEFAULT_ENCODER

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


def test_a_single_item_gets_all_cores(torch_threads):
    torch_threads(3)
    assert list(map_in_threads(lambda _: torch.get_num_threads(), ["one"])) == [("one", 3)]


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_is_raised_and_the_number_of_threads_is_restored(torch_threads, threads):
    torch_threads(threads)
    with pytest.raises(ZeroDivisionError), closing(map_in_threads(lambda n: 1 / (3 - n), range(9))) as results:
        for n, result in results:
            assert result == 1 / (3 - n) and n < 3
    assert torch.get_num_threads() == threads


def test_items_are_taken_only_as_threads_become_free(torch_threads):
    torch_threads(2)
    taken = []
    items = (taken.append(n) or n for n in range(1000))
    with closing(map_in_threads(lambda n: n, items)) as results:
        next(results)
        assert len(taken) <= 4
    assert torch.get_num_threads() == 2


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


def test_an_error_of_an_item_made_ahead_comes_when_it_is_due():
    items = prefetch(1 // divisor for divisor in (1, 0))
    assert next(items) == 1
    with pytest.raises(ZeroDivisionError):
        next(items)
