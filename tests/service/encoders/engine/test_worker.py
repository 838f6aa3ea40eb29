import socket
import threading
from dataclasses import asdict, replace
from multiprocessing.connection import Connection

import pytest
import torch

from lathe.service.encoders.engine import framing, worker
from lathe.service.encoders.engine.dispatcher import WorkerOptions, WorkerProcess, build_message
from lathe.service.encoders.engine.worker import MAX_CHAINS, Tokenized, Worker, serve
from lathe.training.encoder.spec import DEFAULT_ENCODER, EncoderSpec
from lathe.training.errors import EncoderError
from tests.service.encoders.engine.doubles import EncoderDouble
from tests.service.encoders.engine.works import compact, whole, work_of


class TestWorkerInThisProcess:
    def answer(self, *works):
        self.encoder = EncoderDouble()
        self.worker = Worker(self.encoder)
        head, arrays = self.worker.encode_message(self.worker.tokenize([build_message(whole(work)) for work in works]))
        self.batches = head["batches"]
        left = iter(arrays)
        found = []
        for told in head["results"]:
            if "error" in told:
                found.append((told["error"], told["message"]))
            else:
                vectors, tokens, cut = next(left), next(left), next(left)
                found.append(vectors[:, 0].tolist())
                assert len(tokens) == len(cut) == len(vectors) and not told["raw"]
        assert next(left, None) is None
        return found

    def test_requests_with_equal_options_alone_share_batches_and_get_their_own_answers(self):
        found = self.answer(work_of(["a"]), work_of(["ccc", "bb"]), work_of(["dddd"]))
        assert found == [[1], [3, 2], [4]]
        assert self.encoder.tokenized == [["a", "ccc", "bb", "dddd"]]
        assert self.batches == [(3, 9, 12), (1, 3, 4)]
        others = [
            {"truncation_side": "left"},
            {"prompt_name": "query"},
            {"normalize": False},
            {"long_text": "error"},
            {},
        ]
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
        works = [work_of([some], long_text="error") for some in ("a", text, "bb")]
        assert self.answer(*works) == [[1], error, [2]]
        assert "nobody may read" not in caplog.text

    def test_nan_for_a_text_fails_its_own_request_only_even_if_it_spreads_in_the_batch(self):
        asking = work_of(["contagious"])
        asking.positions = [4]  # the cache had the vectors of the others
        error = ("NotFiniteError", "input 4: all-MiniLM-L6-v2 gives NaN or inf for this text in float32")
        assert self.answer(work_of(["a"]), asking, work_of(["ccc"])) == [[1], error, [3]]

    def test_the_vectors_of_all_requests_for_a_chain_are_mapped_together(self, monkeypatch):
        seen = []

        class Doubling:
            def __init__(self, ref):
                self.factor = ref["dimensions"]

            def floats(self, rows):
                seen.append(rows[:, 0].tolist())
                return self.factor * rows

        monkeypatch.setattr(Worker, "load_chain", lambda self, ref: Doubling(ref))
        works = [work_of(["a"], compact(2)), work_of(["bb"]), work_of(["ccc", "dd"], compact(2))]
        assert self.answer(*works, work_of(["eeee"], compact(3))) == [[2], [2], [6, 4], [12]]
        assert seen == [[1, 3, 2], [4]]

    def test_the_most_recently_used_chains_are_kept_whatever_their_dimensions(self, tmp_path):
        worker = Worker(EncoderDouble())
        whole_chain = build_message(whole(work_of(["a"], compact())))["chain"]
        copies = [tmp_path / str(number) for number in range(MAX_CHAINS + 1)]
        for copy in copies:
            copy.symlink_to(whole_chain["folder"])
        asked = [whole_chain | {"folder": str(copy), "dimensions": 8} for copy in copies]
        first = worker.load_chain(asked[0])
        for chain in asked[1:-1]:
            worker.load_chain(chain)
        assert worker.load_chain(asked[0]) is first
        for dimensions in range(1, 100):
            worker.load_chain(asked[-1] | {"dimensions": dimensions})
        assert len(worker.chains) == MAX_CHAINS
        kept = {folder for folder, _ in worker.chains}
        assert str(copies[0]) in kept and str(copies[1]) not in kept

    def test_worker_tokenizes_requests_together_and_each_alone_if_that_fails(self):
        worker = Worker(EncoderDouble())
        (group,) = worker.tokenize([build_message(whole(work_of(["a"]))), build_message(whole(work_of(["b"])))])
        assert isinstance(group, Tokenized) and group.positions == [0, 1] and group.error is None
        groups = worker.tokenize([build_message(whole(work_of([text]))) for text in ("a", "untokenizable")])
        head, arrays = worker.encode_message(groups)
        assert ["error" in result for result in head["results"]] == [False, True] and arrays


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_messages_are_answered_in_order_also_while_the_next_is_computed(monkeypatch, device):
    encoder = EncoderDouble()
    encoder.device = device
    monkeypatch.setattr(worker, "_load_encoder", lambda request: (encoder, {}))
    ended = threading.Event()
    monkeypatch.setattr(worker.os, "_exit", lambda status: ended.set())  # of the thread that reads messages
    ours, theirs = (Connection(end.detach()) for end in socket.socketpair())
    texts = [["a"], ["bb", "contagious"], ["crash"], ["dddd"] * 3]
    framing.send(ours, {})
    for part in texts:
        framing.send(ours, {"parts": [build_message(whole(work_of(part)))]})
    threading.Thread(target=serve, args=(theirs,), daemon=True).start()
    assert framing.receive(ours)[0]["state"] == "ready"
    replies = [framing.receive(ours) for _ in texts]
    assert [head["results"][0].get("error") for head, _ in replies] == [None, "NotFiniteError", "RuntimeError", None]
    assert replies[0][1][0].tolist() == [[1, 1]] and replies[3][1][0].tolist() == [[4, 1]] * 3
    assert all(head["seconds"] >= 0 for head, _ in replies)
    ours.close()
    assert ended.wait(10)


class TestLoading:
    def told_of(self, spec):
        """Load an encoder in a worker in this process and return the error that the server raises."""
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
