from multiprocessing import Pipe

import numpy as np
import pytest

from lathe.service.encoders.engine import framing


@pytest.fixture
def wired():
    """The two ends of a connection."""
    ours, theirs = Pipe()
    with ours, theirs:
        yield ours, theirs


def test_arrays_are_received_as_they_were_sent(wired):
    arrays = [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(12, dtype=np.int64).reshape(3, 4)[:, ::2],  # not in one piece
        np.empty((0, 5), np.float32),
    ]
    framing.send(wired[0], {"text": "東京"}, arrays)
    head, received = framing.receive(wired[1])
    assert head == {"text": "東京"}
    for sent, came in zip(arrays, received, strict=True):
        assert (sent.dtype, sent.shape) == (came.dtype, came.shape)
        np.testing.assert_array_equal(sent, came)
