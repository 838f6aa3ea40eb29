import os
import signal
import socket
from dataclasses import asdict, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from service.chains.chain_ref import ChainRef
from service.chains.starters import STARTERS
from service.encoder_settings import WorkerOptions
from service.encoders.engine import framing
from service.encoders.engine.admission_queue import AdmissionQueue
from service.encoders.engine.dispatcher import WorkerProcess, build_message
from service.encoders.engine.engine import Engine
from service.encoders.engine.work import EncodeOptions, Part, PartResult, Reply, Work
from service.encoders.engine.worker import MAX_CHAINS, Tokenized, Worker, serve
from service.errors import UnavailableError
from tests.helpers import eventually
from training.encoder.batching import Batch
from training.encoder.spec import DEFAULT_ENCODER, EncoderSpec
from training.errors import EncoderError, TooLongError
from transforms.chain import Chain
from transforms.errors import ArtifactError

COMPACT = STARTERS / "compact" / "1"
TEXTS = ["The cat sat on the mat.", "one", "Compact vectors are cheap to keep. " * 9, "naïve café, 東京, 😀", "one"]


def work_of(texts, chain=None, keep_raw=False, **options):
    """Build work of these texts."""
    return Work(list(texts), EncodeOptions(**options), chain, keep_raw, 256)


def whole(work):
    """Take all texts of a work as one part."""
    return work.take(10**9)


def compact(dimensions=None, normalize=True, digest=None):
    """Build a reference to the starter chain `compact`."""
    return ChainRef(
        COMPACT, digest or Chain.load(COMPACT).metadata["tensors_sha256"], dimensions=dimensions, normalize=normalize
    )


@pytest.fixture
def wired():
    """The two ends of a connection."""
    ours, theirs = Pipe()
    with ours, theirs:
        yield ours, theirs


class TestMessages:
    def test_arrays_are_received_as_they_were_sent(self, wired):
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

    def test_receive_returns_no_arrays_for_a_message_without_any(self, wired):
        framing.send(wired[0], {"a": 1})
        assert framing.receive(wired[1]) == ({"a": 1}, [])

    def test_receive_from_a_closed_connection_raises_eof_error(self, wired):
        wired[0].close()
        with pytest.raises(EOFError):
            framing.receive(wired[1])


class Double:
    """Fake encoder: a text's vector is its length, and some texts fail."""

    dimensions, device = 2, "cpu"

    def __init__(self):
        self.tokenized = []

    def prompt(self, name):
        if name not in (None, "query"):
            raise EncoderError(f"no prompt {name}")
        return name

    def require_short(self, texts, prompt, places):
        for text, place in zip(texts, places, strict=True):
            if text == "too long":
                raise TooLongError(f"input {place} is too long")

    def tokenize(self, texts, prompt, side):
        self.tokenized.append(texts)
        if "untokenizable" in texts:
            raise ValueError("a text nobody may read in a log")
        half = len(texts) // 2 + 1
        backwards = np.arange(len(texts))[::-1].copy()
        return [
            Batch(rows, {"texts": [texts[row] for row in rows]}, rows * 0 + 3, 4 * len(rows))
            for rows in (backwards[:half], backwards[half:])
            if len(rows)
        ]

    def forward(self, batch, normalize):
        if "crash" in batch.features["texts"]:
            raise RuntimeError("a text nobody may read in a log")
        return torch.tensor([[len(text), float(normalize)] for text in batch.features["texts"]])


class TestWorkerInThisProcess:
    def answer(self, *works):
        self.encoder = Double()
        self.worker = Worker(self.encoder)
        head, arrays = self.worker.encode_message(self.worker.tokenize([build_message(whole(work)) for work in works]))
        self.batches = head["batches"]
        left = iter(arrays)
        found = []
        for told in head["results"]:
            if "error" in told:
                found.append((told["error"], told["message"]))
            else:
                vectors, tokens = next(left), next(left)
                found.append(vectors[:, 0].tolist())
                assert len(tokens) == len(vectors) and not told["raw"]
        assert next(left, None) is None
        return found

    def test_requests_with_equal_options_share_batches_and_get_their_own_answers(self):
        found = self.answer(work_of(["a"]), work_of(["ccc", "bb"]), work_of(["dddd"]))
        assert found == [[1], [3, 2], [4]]
        assert self.encoder.tokenized == [["a", "ccc", "bb", "dddd"]]
        assert self.batches == [(3, 9, 12), (1, 3, 4)]

    def test_requests_with_different_options_do_not_share_batches(self):
        others = [{"truncation_side": "left"}, {"prompt_name": "query"}, {"normalize": False}, {"truncate": False}, {}]
        found = self.answer(work_of(["a"]), *(work_of(["bb"], **other) for other in others))
        assert found == [[1]] + [[2]] * 5
        assert self.encoder.tokenized == [["a", "bb"], ["bb"], ["bb"], ["bb"], ["bb"]]

    @pytest.mark.parametrize(
        ("text", "error"),
        [
            ("too long", ("TooLongError", "input 0 is too long")),
            ("untokenizable", ("ValueError", "")),
            ("crash", ("RuntimeError", "")),
        ],
    )
    def test_an_error_of_one_request_does_not_affect_others_and_is_logged_without_its_text(self, text, error, caplog):
        works = [work_of([some], truncate=False) for some in ("a", text, "bb")]
        assert self.answer(*works) == [[1], error, [2]]
        assert "nobody may read" not in caplog.text

    def test_an_unknown_prompt_fails_its_own_request_only(self):
        found = self.answer(work_of(["a"]), work_of(["b"], prompt_name="poem"))
        assert found == [[1], ("EncoderError", "no prompt poem")]

    def test_a_chain_that_cannot_be_loaded_fails_its_own_request_only(self, tmp_path):
        gone = ChainRef(tmp_path / "gone", "0", None, True)
        found = self.answer(work_of(["a"]), work_of(["bb"], gone), work_of(["ccc"]))
        assert found[0] == [1] and found[2] == [3]
        assert found[1][0] == "ArtifactError"
        assert self.encoder.tokenized == [["a", "bb", "ccc"]]

    def test_a_chain_with_another_digest_is_refused(self):
        found = self.answer(work_of(["a"], compact(digest="0" * 64)))
        assert found[0][0] == "ArtifactError" and "replaced" in found[0][1]

    def test_the_most_recently_used_chains_are_cached(self):
        worker = Worker(Double())
        asked = [build_message(whole(work_of(["a"], compact(size))))["chain"] for size in range(1, MAX_CHAINS + 2)]
        first = worker.load_chain(asked[0])
        for chain in asked[1:-1]:
            worker.load_chain(chain)
        assert worker.load_chain(asked[0]) is first
        worker.load_chain(asked[-1])
        assert len(worker.chains) == MAX_CHAINS
        kept = worker.chains.keys()
        assert tuple(asked[0].values()) in kept and tuple(asked[1].values()) not in kept

    def test_worker_tokenizes_requests_together_and_each_alone_if_that_fails(self):
        worker = Worker(Double())
        (group,) = worker.tokenize([build_message(whole(work_of(["a"]))), build_message(whole(work_of(["b"])))])
        assert isinstance(group, Tokenized) and group.positions == [0, 1] and group.error is None
        alone = worker.tokenize([build_message(whole(work_of([text]))) for text in ("a", "untokenizable")])
        assert [group.positions for group in alone] == [[0], [1]]
        assert [group.error is None for group in alone] == [True, False]


class Adopted:
    """A process that is ready already, for an engine."""

    def __init__(self, process, info):
        self.wait_ready = lambda: info
        self.send, self.receive, self.alive, self.stop = process.send, process.receive, process.alive, process.stop
        self.process, self.connection = process.process, process.connection


class TestLoading:
    def told_of(self, spec):
        """Load an encoder in a worker in this process; return the error that the server raises."""
        ours, theirs = socket.socketpair()
        options = WorkerOptions(device="cpu", threads=torch.get_num_threads())
        server = object.__new__(WorkerProcess)
        server.connection, server.spec = Connection(ours.detach()), spec
        framing.send(server.connection, {"spec": asdict(spec), "options": asdict(options)})
        serve(Connection(theirs.detach()))
        with server.connection, pytest.raises(EncoderError) as error:
            server.wait_ready()
        return str(error.value)

    def test_a_missing_model_is_reported_with_the_reason(self, tmp_path):
        told = self.told_of(EncoderSpec(name="broken", model=str(tmp_path / "nowhere")))
        assert told.startswith("the encoder broken (") and "nowhere) cannot be loaded" in told

    def test_an_unexpected_error_is_reported_by_its_type(self):
        told = self.told_of(replace(DEFAULT_ENCODER, dtype="float7"))
        assert told.startswith("all-MiniLM-L6-v2 failed to load: KeyError")


@pytest.fixture(scope="module")
def workers(processes):
    """Start a worker process with the real model, shared by the tests."""
    options = WorkerOptions(device="cpu", threads=1, batch_tokens=64)
    real = WorkerProcess(DEFAULT_ENCODER, options, processes)
    yield SimpleNamespace(real=real, options=options, info=real.wait_ready())
    real.stop()


def ask(process, *works):
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
    """With the real model; the last tests end it."""

    def test_the_worker_describes_the_loaded_encoder(self, workers, encoder):
        info = workers.info
        assert (info.name, info.fingerprint, info.spec) == (encoder.name, encoder.fingerprint, encoder.spec)
        assert (info.dimensions, info.max_length, info.device, info.batch_tokens) == (384, 256, "cpu", 64)
        assert info.prompts == encoder.prompts and info.default_prompt_name is None
        assert info.agreement.min > 0.99999
        described = info.describe()
        assert described["name"] == encoder.name and described["cosine_to_float32"]["min"] == info.agreement.min
        with pytest.raises(EncoderError, match=r"'poem'.*document, query"):
            info.find_prompt("poem")

    def test_vectors_equal_those_of_the_encoder_itself(self, workers, encoder):
        work = work_of(TEXTS)
        reply = ask(workers.real, work)
        answer, expected = in_order(work, reply.results[0]), encoder.encode(TEXTS)
        assert answer.vectors.dtype == np.float32 and answer.raw is None
        np.testing.assert_allclose(answer.vectors, expected.vectors, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(answer.tokens, expected.tokens)
        assert sum(texts for texts, _, _ in reply.batches) == len(TEXTS)
        assert sum(tokens for _, tokens, _ in reply.batches) == expected.tokens.sum()
        assert len(reply.batches) > 1 and reply.seconds > 0

    def test_truncation_and_normalization_options_are_applied(self, workers, encoder):
        long = "cat " * 300 + "dog " * 300
        options = [{"truncation_side": "left"}, {"truncation_side": "right"}, {"normalize": False}]
        works = [work_of([long], **some) for some in options]
        for result, some in zip(ask(workers.real, *works).results, options, strict=True):
            np.testing.assert_allclose(result.vectors, encoder.encode([long], **some).vectors, rtol=0, atol=1e-5)

    def test_chains_applied_by_the_worker_equal_those_applied_directly(self, workers, encoder):
        chain, raw = Chain.load(COMPACT), encoder.encode(TEXTS).vectors
        works = [
            work_of(TEXTS, compact(), keep_raw=True),
            work_of(TEXTS, compact(32, normalize=False)),
            work_of(TEXTS, keep_raw=True),  # without a chain there is nothing to keep
        ]
        results = ask(workers.real, *works).results
        full, cut, none = (in_order(work, result) for work, result in zip(works, results, strict=True))
        np.testing.assert_allclose(full.vectors, chain.floats(raw), rtol=0, atol=1e-5)
        np.testing.assert_allclose(full.raw, raw, rtol=0, atol=1e-5)
        np.testing.assert_allclose(cut.vectors, chain.fold(32, False).floats(raw), rtol=0, atol=1e-5)
        assert cut.vectors.shape == (5, 32) and cut.raw is None
        np.testing.assert_allclose(none.vectors, raw, rtol=0, atol=1e-5)
        assert none.raw is None

    def test_each_request_gets_its_own_error(self, workers):
        works = [
            work_of(["short", "short as well", "word " * 300], truncate=False),
            work_of(["fine"], truncate=False),
            work_of(["a"], compact(digest="0" * 64)),
            work_of(["a"], compact(9999)),  # which nobody lets through
            work_of(["a"], prompt_name="poem"),
        ]
        too_long, fine, replaced, unforeseen, poem = ask(workers.real, *works).results
        assert isinstance(too_long, TooLongError) and "input 2 has 302 tokens" in str(too_long)
        assert isinstance(fine, PartResult) and fine.vectors.shape == (1, 384)
        assert isinstance(replaced, ArtifactError) and "replaced" in str(replaced)
        assert isinstance(unforeseen, UnavailableError) and unforeseen.code == "encoder_failed"
        assert "failed on this request (" in unforeseen.message
        assert isinstance(poem, EncoderError) and "'poem'" in str(poem)

    def test_a_part_numbers_its_texts_by_their_position_in_the_request(self, workers):
        work = work_of(["word " * 300, "b", "word " * 270], truncate=False)
        workers.real.send([Part(work, [1, 2], 10, 0.0)])
        (result,) = workers.real.receive(60).results
        assert isinstance(result, TooLongError) and str(result).startswith("input 2 has 272 tokens")

    def test_replies_arrive_in_the_order_of_the_messages(self, workers):
        works = [work_of(["x " * count]) for count in (200, 1, 50)]
        for work in works:
            workers.real.send([whole(work)])
        tokens = [workers.real.receive(60).results[0].tokens.tolist() for _ in works]
        assert tokens == [[202], [3], [52]]

    def test_receive_raises_timeout_error_without_a_reply(self, workers):
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

        engine = Engine(DEFAULT_ENCODER, start, AdmissionQueue(100, 10_000))
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
