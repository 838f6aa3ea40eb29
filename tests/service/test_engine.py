import asyncio
import threading

import numpy as np
import pytest

from service.engine import MERGED_TEXTS, EncodeOptions, Engine
from service.errors import OverloadedError, UnavailableError
from training.encoders import DEFAULT_ENCODER, Encoding
from training.errors import EncoderError, TooLongError


class Double:
    """Stands where the model would: encodes a text as its length, when it is let."""

    def __init__(self, _spec):
        self.calls = []
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()

    def encode(self, texts, **_options):
        self.entered.set()
        self.open.wait(10)
        self.calls.append(list(texts))
        if "too long" in texts:
            raise TooLongError("too long")
        if "crash" in texts:
            raise RuntimeError("crash")
        vectors = np.array([[len(text), 1] for text in texts], dtype=np.float32).reshape(-1, 2)
        return Encoding(vectors, np.ones(len(texts), dtype=np.int64))


@pytest.fixture
def engine():
    engine = Engine(DEFAULT_ENCODER, Double, max_queued_texts=10)
    engine.start()
    engine.settled.wait(10)
    yield engine
    engine.encoder.open.set()
    engine.stop()
    assert not engine.thread.is_alive()


def embed_all(engine, requests):
    """Send requests while the model is busy with another, so that all of them wait together."""

    async def send():
        engine.encoder.open.clear()
        engine.encoder.entered.clear()
        busy = asyncio.ensure_future(engine.embed([], EncodeOptions(prompt_name="busy"), None))
        await asyncio.to_thread(engine.encoder.entered.wait, 10)
        sent = [asyncio.ensure_future(engine.embed(texts, EncodeOptions(**o), None)) for texts, o in requests]
        await asyncio.sleep(0.1)
        engine.encoder.open.set()
        await busy
        return await asyncio.gather(*sent, return_exceptions=True)

    return asyncio.run(send())


def test_requests_that_wait_together_are_encoded_together_and_answered_apart(engine):
    answers = embed_all(engine, [(["a"], {}), (["bb", "ccc"], {}), (["dddd"], {})])
    assert [answer.vectors[:, 0].tolist() for answer in answers] == [[1], [2, 3], [4]]
    assert engine.encoder.calls[-1] == ["a", "bb", "ccc", "dddd"]
    assert all(answer.inference_ms >= 0 for answer in answers) and answers[1].queue_ms > 50


def test_requests_with_other_options_are_not_mixed(engine):
    answers = embed_all(engine, [(["a"], {}), (["bb"], {"truncation_side": "left"}), (["ccc"], {})])
    assert [answer.vectors[0, 0] for answer in answers] == [1, 2, 3]
    assert engine.encoder.calls[-3:] == [["a"], ["bb"], ["ccc"]]


def test_a_bad_request_fails_alone(engine):
    answers = embed_all(engine, [(["a"], {}), (["too long"], {}), (["crash"], {}), (["bb"], {})])
    assert [type(answer).__name__ for answer in answers] == ["Embedded", "TooLongError", "UnavailableError", "Embedded"]
    assert answers[3].vectors[0, 0] == 2


class Failing:
    """A chain that cannot be applied."""

    def transform(self, _vectors):
        raise MemoryError


def test_a_chain_that_fails_fails_its_request_alone_and_the_engine_goes_on(engine):
    with pytest.raises(UnavailableError):
        asyncio.run(engine.embed(["a"], EncodeOptions(), Failing()))
    assert asyncio.run(engine.embed(["bb"], EncodeOptions(), None)).vectors[0, 0] == 2


def test_a_large_request_takes_turns_and_keeps_its_order(engine):
    texts = ["x" * (index % 7 + 1) for index in range(3 * MERGED_TEXTS + 5)]
    answer = asyncio.run(engine.embed(texts, EncodeOptions(), None))
    assert answer.vectors[:, 0].tolist() == [len(text) for text in texts]
    assert len(answer.tokens) == len(texts)
    assert max(len(call) for call in engine.encoder.calls) <= MERGED_TEXTS


def test_past_the_limit_all_of_a_request_is_refused_at_once_and_later_ones_are_taken(engine):
    answers = embed_all(engine, [(["a"] * 6, {}), (["b"] * 6, {}), (["c"] * 4, {})])
    assert isinstance(answers[1], OverloadedError) and answers[1].retry_after
    assert [len(answers[i].vectors) for i in (0, 2)] == [6, 4]
    assert len(embed_all(engine, [(["d"] * 10, {})])[0].vectors) == 10


def test_a_request_larger_than_the_limit_is_taken_when_nothing_waits(engine):
    assert len(embed_all(engine, [(["a"] * 50, {})])[0].vectors) == 50


def test_a_model_that_cannot_be_loaded_answers_503_with_the_reason():
    def load(_spec):
        raise EncoderError("the folder is empty")

    engine = Engine(DEFAULT_ENCODER, load, max_queued_texts=10)
    engine.start()
    engine.settled.wait(10)
    with pytest.raises(UnavailableError, match="the folder is empty"):
        asyncio.run(engine.embed(["a"], EncodeOptions(), None))
    engine.stop()
