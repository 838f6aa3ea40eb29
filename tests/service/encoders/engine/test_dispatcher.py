import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest
from prometheus_client import REGISTRY

from lathe.service.encoders.engine.admission_queue import AdmissionQueue
from lathe.service.encoders.engine.dispatcher import EngineOptions, WorkerOptions, WorkerProcess
from lathe.service.encoders.engine.engine import Engine
from lathe.service.encoders.engine.work import EncodeOptions, Part, PartResult, Reply
from lathe.service.errors import UnavailableError
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.errors import EncoderError, TooLongError
from lathe.transforms.chain import Chain
from lathe.transforms.errors import ArtifactError
from tests.helpers import eventually
from tests.service.encoders.engine.doubles import HELD, SECONDS, ask, error_of, lengths
from tests.service.encoders.engine.works import COMPACT, compact, whole, work_of

TEXTS = ["The cat sat on the mat.", "one", "Compact vectors are cheap to keep. " * 9, "naïve café, 東京, 😀", "one"]


def test_waiting_requests_are_sent_together_and_answered_separately_also_if_one_fails(start):
    engine, (worker,) = start(HELD)
    ask(engine, "busy")
    eventually(lambda: worker.calls)
    works = [ask(engine, "a"), ask(engine, "bb", "ccc"), ask(engine, "dddd", truncation_side="left")]
    failing = ask(engine, "too long")
    worker.set(open=True)
    with pytest.raises(TooLongError):
        failing.future.result(SECONDS)
    assert [lengths(work) for work in works] == [[1], [2, 3], [4]]
    assert worker.calls == [[["busy"]], [["a"], ["bb", "ccc"], ["dddd"], ["too long"]]]
    assert engine.state == "ready"


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_worker_gets_up_to_ahead_batches_before_its_reply(start, ahead):
    engine, (worker,) = start(HELD, ahead=ahead)
    work = ask(engine, *["x" * 400] * 5)
    eventually(lambda: worker.waited)
    assert len(worker.calls) == ahead
    worker.set(open=True)
    assert lengths(work) == [400] * 5


def test_a_worker_over_the_timeout_is_killed_and_replaced(start):
    engine, made = start(HELD, {}, timeout=0.02)
    work = ask(engine, "a")
    assert error_of(work) == "encoder_crashed"
    eventually(lambda: len(made) == 2)
    assert made[0].dead and made[0].waited == [0.02]
    eventually(lambda: engine.state == "ready")
    assert lengths(ask(engine, "a")) == [1]


def test_texts_tokens_and_padding_are_counted_in_the_metrics(start):
    def counted():
        names = ("lathe_texts_total", "lathe_tokens_total", "lathe_padding_tokens_total", "lathe_queue_seconds_count")
        return np.array([REGISTRY.get_sample_value(name, {"encoder": DEFAULT_ENCODER.name}) or 0 for name in names])

    engine, _ = start()
    before = counted()
    lengths(ask(engine, "a"))
    eventually(lambda: (counted() - before == [2, 10, 2, 1]).all())
    assert engine.queue.rate == pytest.approx(2 / 0.01)  # two tokens estimated in the seconds the worker told


@pytest.mark.parametrize("reply", [None, Reply([], [], 0.0)])  # not one at all, and one without results
def test_a_worker_with_a_malformed_reply_is_replaced(start, reply):
    engine, made = start()
    made[0].receive = lambda _seconds: reply
    assert error_of(ask(engine, "a")) == "encoder_crashed"
    eventually(lambda: len(made) == 2 and engine.state == "ready")
    assert lengths(ask(engine, "a")) == [1]


class Adopted:
    """A process that is ready already, for an engine."""

    def __init__(self, process, info):
        self.wait_ready = lambda: info
        self.send, self.receive, self.alive, self.stop = process.send, process.receive, process.alive, process.stop
        self.process, self.connection = process.process, process.connection


@pytest.fixture(scope="module")
def workers(processes):
    """Start a worker process with the real model, shared by the tests."""
    options = WorkerOptions(device="cpu", threads=1, batch_tokens=64)
    real = WorkerProcess(DEFAULT_ENCODER, options, processes)
    yield SimpleNamespace(real=real, options=options, info=real.wait_ready())
    real.stop()


def encode_in(process, *works):
    """Send works to the process and return its reply."""
    process.send([whole(work) for work in works])
    reply = process.receive(60)
    assert isinstance(reply, Reply)
    return reply


def in_order(work, result):
    """Return the answer of a work to the result of all its texts."""
    work.receive(work.order, result)
    return work.future.result(0)


class TestWorkerProcess:
    """Tests with a process that runs the real model, which the last tests end."""

    def test_the_worker_describes_the_loaded_encoder(self, workers, encoder):
        info = workers.info
        assert (info.name, info.fingerprint, info.spec) == (encoder.name, encoder.fingerprint, encoder.spec)
        assert (info.dimensions, info.max_length, info.device, info.batch_tokens) == (384, 256, "cpu", 64)
        assert info.prompts == encoder.prompts and info.default_prompt_name is None
        assert info.agreement.min > 0.99999
        described = info.describe()
        assert described["name"] == encoder.name and described["cosine_to_float32"]["min"] == info.agreement.min
        with pytest.raises(EncoderError, match=r"'poem'.*document, query"):
            info.prompt("poem")

    def test_vectors_equal_those_of_the_encoder_itself(self, workers, encoder):
        work = work_of(TEXTS)
        reply = encode_in(workers.real, work)
        answer, expected = in_order(work, reply.results[0]), encoder.encode(TEXTS)
        assert answer.vectors.dtype == np.float32 and answer.raw is None
        np.testing.assert_allclose(answer.vectors, expected.vectors, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(answer.tokens, expected.tokens)
        assert sum(texts for texts, _, _ in reply.batches) == len(TEXTS)
        assert sum(tokens for _, tokens, _ in reply.batches) == expected.tokens.sum()
        assert len(reply.batches) > 1 and reply.seconds > 0

    def test_options_and_chains_applied_by_the_worker_equal_those_applied_directly(self, workers, encoder):
        long = "cat " * 300 + "dog " * 300
        options = [{"truncation_side": "left"}, {"truncation_side": "right"}, {"normalize": False}]
        works = [work_of([long], **some) for some in options]
        for result, some in zip(encode_in(workers.real, *works).results, options, strict=True):
            np.testing.assert_allclose(result.vectors, encoder.encode([long], **some).vectors, rtol=0, atol=1e-5)
        chain, raw = Chain.load(COMPACT), encoder.encode(TEXTS).vectors
        works = [
            work_of(TEXTS, compact(), keep_raw=True),
            work_of(TEXTS, compact(32, normalize=False)),
            work_of(TEXTS, keep_raw=True),  # without a chain there is nothing to keep
        ]
        results = encode_in(workers.real, *works).results
        full, cut, none = (in_order(work, result) for work, result in zip(works, results, strict=True))
        np.testing.assert_allclose(full.vectors, chain.floats(raw), rtol=0, atol=1e-5)
        np.testing.assert_allclose(full.raw, raw, rtol=0, atol=1e-5)
        np.testing.assert_allclose(cut.vectors, chain.fold(32, False).floats(raw), rtol=0, atol=1e-5)
        assert cut.vectors.shape == (5, 32) and cut.raw is None
        np.testing.assert_allclose(none.vectors, raw, rtol=0, atol=1e-5)
        assert none.raw is None

    def test_each_request_gets_its_own_error(self, workers):
        works = [
            work_of(["short", "short as well", "word " * 300], long_text="error"),
            work_of(["fine"], long_text="error"),
            work_of(["a"], compact(digest="0" * 64)),
            work_of(["a"], compact(9999)),  # which nobody lets through
            work_of(["a"], prompt_name="poem"),
        ]
        too_long, fine, replaced, unforeseen, poem = encode_in(workers.real, *works).results
        assert isinstance(too_long, TooLongError) and "input 2 has 302 tokens" in str(too_long)
        assert isinstance(fine, PartResult) and fine.vectors.shape == (1, 384)
        assert isinstance(replaced, ArtifactError) and "replaced" in str(replaced)
        assert isinstance(unforeseen, UnavailableError) and unforeseen.code == "encoder_failed"
        assert "failed on this request (" in unforeseen.message
        assert isinstance(poem, EncoderError) and "'poem'" in str(poem)

        work = work_of(["word " * 300, "b", "word " * 270], long_text="error")  # positions are those of the request
        workers.real.send([Part(work, [1, 2], 10, 0.0)])
        (result,) = workers.real.receive(60).results
        assert isinstance(result, TooLongError) and str(result).startswith("input 2 has 272 tokens")

    @pytest.mark.release
    def test_replies_arrive_in_the_order_of_the_messages_or_receive_raises_timeout_error(self, workers):
        works = [work_of(["x " * count]) for count in (200, 1, 50)]
        for work in works:
            workers.real.send([whole(work)])
        tokens = [workers.real.receive(60).results[0].tokens.tolist() for _ in works]
        assert tokens == [[202], [3], [52]]
        with pytest.raises(TimeoutError):
            workers.real.receive(0.001)  # nothing was sent
        assert workers.real.alive()

    def test_worker_environment_has_the_thread_count_and_no_keys(self, monkeypatch):
        monkeypatch.setenv("LATHE_API_KEYS", "a-secret")
        asked = []

        class Refusing:
            def start(self, program):
                asked.append(program.environment)
                raise BlockingIOError("no more of them here")

        with pytest.raises(BlockingIOError):
            WorkerProcess(DEFAULT_ENCODER, WorkerOptions(threads=3), Refusing())
        assert asked[0]["OMP_NUM_THREADS"] == asked[0]["RAYON_NUM_THREADS"] == "3"
        assert "a-secret" not in asked[0].values()

    def test_a_killed_worker_process_fails_its_requests_and_is_replaced(self, workers, processes, encoder):
        started = []

        def start(spec):
            if len(started) == 2:
                raise BlockingIOError("no more of them here")
            adopted = Adopted(workers.real, workers.info)
            started.append(WorkerProcess(spec, workers.options, processes) if started else adopted)
            return started[-1]

        engine = Engine(DEFAULT_ENCODER, start, AdmissionQueue(100, 10_000), EngineOptions())
        engine.start()
        try:
            eventually(lambda: engine.state == "ready")
            first = engine.queue.admit(["a"], EncodeOptions(), 256).future.result(60)
            os.kill(workers.real.process.pid, signal.SIGSTOP)
            taken = engine.queue.admit(["a"], EncodeOptions(), 256)
            eventually(lambda: not taken.waiting)
            waiting = engine.queue.admit(["b"], EncodeOptions(), 256)
            os.kill(workers.real.process.pid, signal.SIGKILL)
            for work in (taken, waiting):
                error = work.future.exception(60)
                assert isinstance(error, UnavailableError) and error.code == "encoder_crashed"
            eventually(lambda: engine.state == "ready")
            again = engine.queue.admit(["a"], EncodeOptions(), 256).future.result(60)
            np.testing.assert_allclose(again.vectors, first.vectors, rtol=0, atol=1e-5)

            started[1].connection.close()  # as when the server dies
            assert started[1].process.wait(30) == 0
            eventually(lambda: engine.state != "ready")
        finally:
            engine.stop(0)
        assert [worker.process.poll() for worker in started] == [-signal.SIGKILL, 0]
