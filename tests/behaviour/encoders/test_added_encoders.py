import threading

import numpy as np
import pytest

from lathe.service.encoder_settings import AddedEncoders, EncoderSettings
from lathe.service.encoders.engine.admission_queue import AdmissionQueue
from lathe.service.encoders.engine.dispatcher import EngineOptions
from lathe.service.encoders.engine.encoder_info import EncoderInfo
from lathe.service.encoders.engine.engine import Engine
from lathe.service.encoders.engine.work import PartResult, Reply
from lathe.service.errors import ConflictError, UnknownNameError
from lathe.service.settings import read_settings
from lathe.training.encoder.precision import Agreement
from lathe.training.encoder.spec import DEFAULT_ENCODER, DEFAULT_MODEL
from tests.helpers import eventually

SMALL = EncoderSettings(name="small", model=DEFAULT_MODEL, layer=1, max_length=64, prompts={"q": "find: "}, load=False)


@pytest.fixture
def added(tmp_path):
    return AddedEncoders(tmp_path / "home")


def test_added_encoders_are_read_back_and_removed_ones_are_not(added):
    other = EncoderSettings(name="other", model="a/model", dtype="float16")
    assert added.read() == []
    added.add(SMALL, set())
    added.add(other, {"taken"})
    assert AddedEncoders(added.path.parent).read() == [SMALL, other]
    added.remove("small")
    assert added.read() == [other]
    with pytest.raises(UnknownNameError, match="'small'"):
        added.remove("small")


def test_adding_an_encoder_under_a_name_in_use_raises_conflict_error(added):
    added.add(SMALL, set())
    for name in ("small", "taken"):
        with pytest.raises(ConflictError, match=name):
            added.add(SMALL.model_copy(update={"name": name}), {"taken"})
    assert added.read() == [SMALL]


@pytest.mark.parametrize("content", ["[1]", '[{"name": "x", "model": "y", "novel": 1}]'])
def test_a_damaged_encoders_json_raises_value_error_naming_it(added, content):
    added.path.parent.mkdir()
    added.path.write_text(content)
    with pytest.raises(ValueError, match=r"encoders\.json"):
        added.read()


@pytest.mark.parametrize("wrong", [{"name": "a+b"}, {"model": ""}, {"layer": 0}, {"pooling": "sum"}])
def test_encoder_settings_reject_invalid_values(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        EncoderSettings(**{"name": "x", "model": "y"} | wrong)


def test_encoders_of_the_settings_come_first_and_take_precedence_over_added_ones(added):
    added.add(SMALL, set())
    added.add(SMALL.model_copy(update={"name": "mine"}), set())
    mine = {"name": "mine", "model": "a/model"}
    settings = read_settings(home=added.path.parent, encoders=[mine], dtype="bfloat16")
    assert [(spec.name, spec.model, spec.dtype) for spec in settings.specs] == [
        ("mine", "a/model", "bfloat16"),
        ("small", DEFAULT_MODEL, "bfloat16"),
    ]
    assert [spec.name for spec in settings.loaded_specs] == ["mine"]  # small waits until it is asked for
    assert settings.specs[1].layer == 1 and settings.specs[1].prompts == {"q": "find: "}


def test_find_encoder_spec_sees_encoders_added_or_removed_since_the_start(added):
    settings = read_settings(home=added.path.parent)
    assert settings.hosted and settings.find_encoder_spec("small") is None
    added.add(SMALL.model_copy(update={"dtype": "float16"}), set())
    assert settings.find_encoder_spec("small").dtype == "float16"
    assert settings.find_encoder_spec(DEFAULT_ENCODER.name).model == DEFAULT_MODEL
    added.remove("small")
    assert settings.find_encoder_spec("small") is None


def test_encoders_commands_add_list_and_remove(run, home):
    given = ["--model", DEFAULT_MODEL, "--layer", 1, "--max-length", 64, "--prompt", "q=find: ", "--no-load"]
    status, out, err = run("encoders", "add", "small", *given)
    assert status == 0 and out == "small: 384 dimensions, 64 tokens, float32\n"
    assert "/encoders/small" in err
    assert AddedEncoders(home).read() == [SMALL]
    _, out, _ = run("encoders", "list")
    rows = [line.split()[:2] + [line.split()[-1]] for line in out.splitlines()[1:]]
    assert rows == [[DEFAULT_ENCODER.name, "float32", DEFAULT_MODEL], ["small", "float32", DEFAULT_MODEL]]
    assert "on request" in out.splitlines()[2] and "at start" in out.splitlines()[1]
    status, _, err = run("encoders", "add", "small", *given)
    assert status == 1 and "the name small is in use by another encoder" in err
    assert run("encoders", "remove", "small")[:2] == (0, "small removed\n")
    assert AddedEncoders(home).read() == []


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["add", "small", "--model", DEFAULT_MODEL, "--dtype", "int8"], "dtype"),
        (["add", "small", "--model", DEFAULT_MODEL, "--layer", "7"], "layers 1 to 6, not 7"),
        (["remove", "small"], "'small'"),
        (["remove", "mine"], "LATHE_ENCODERS"),
    ],
)
def test_encoders_commands_fail_for_invalid_arguments_and_change_nothing(run, home, arguments, word):
    status, _, err = run("encoders", *arguments, LATHE_ENCODERS='[{"name": "mine", "model": "a/model"}]')
    assert status == 1 and word in err
    assert AddedEncoders(home).read() == []


class Double:
    """Fake worker process of an added encoder: encodes a text as its length."""

    def __init__(self, spec):
        self.info = EncoderInfo(spec, "5" * 32, 2, 64, {"q": "find: "}, None, "cpu", 64, Agreement(0.9998, 0.9995))
        self.loaded = threading.Event()
        self.ended = False
        self.given = []

    def wait_ready(self):
        self.loaded.wait(60)
        return self.info

    def send(self, parts):
        self.given.append(parts)

    def receive(self, _seconds):
        parts = self.given.pop(0)
        lengths = [[len(part.work.texts[row]) for row in part.rows] for part in parts]
        vectors = [np.array([[length, 1] for length in some], np.float32) for some in lengths]
        one = np.ones(1, np.int64)
        results = [PartResult(some, None, one.repeat(len(some)), 0 * one.repeat(len(some))) for some in vectors]
        return Reply(results, [], 0.01)

    def alive(self):
        return not self.ended

    def stop(self):
        self.ended = True
        self.loaded.set()


@pytest.fixture
def workers(lathe):
    """Replace the workers of added encoders by doubles that load when told to, and return those started."""
    started = []

    def start(spec):
        started.append(Double(spec))
        return started[-1]

    make_engine = lathe.services.make_engine
    lathe.services.make_engine = lambda spec: Engine(spec, start, AdmissionQueue(100, 10_000), EngineOptions())
    yield started
    lathe.services.make_engine = make_engine
    for name in list(lathe.services.embedder.engines)[1:]:
        lathe.services.embedder.remove(name).stop(0)


@pytest.fixture
def small(lathe):
    added = AddedEncoders(lathe.settings.home)
    added.add(SMALL, set())
    yield SMALL.name
    added.remove(SMALL.name)


def test_an_admin_can_load_and_unload_an_added_encoder_while_the_server_runs(lathe, workers, small):
    client, body = lathe.client, {"inputs": ["a red bicycle", "x"], "model": small, "prompt_name": "q"}
    assert client.put("/encoders/small").status_code == 401 and not workers
    answer = client.put("/encoders/small", headers=lathe.admin)
    assert (answer.status_code, answer.json()) == (202, {"name": "small", "state": "loading"})
    early = client.post("/embed", json=body)
    assert early.status_code == 503 and early.json()["error"]["code"] == "not_ready"
    engine = lathe.services.embedder.engines["small"]
    eventually(lambda: workers)
    workers[0].loaded.set()
    assert engine.settled.wait(10)
    again = client.put("/encoders/small", headers=lathe.admin)
    assert (again.status_code, again.json()) == (200, {"name": "small", "state": "ready"})
    assert len(workers) == 1 and workers[0].info.spec == SMALL.build_spec("float32")

    assert client.post("/embed", json=body).json() == [[13, 1], [1, 1]]
    assert len(client.post("/embed", json={"inputs": "x"}).json()[0]) == 384  # the default is what it was
    first, second = client.get("/encoders").json()
    assert [first["name"], second["name"], second["state"]] == [DEFAULT_ENCODER.name, "small", "ready"]
    assert (second["layer"], second["max_length"], second["workers"], second["dtype"]) == (1, 64, 1, "float32")
    assert second["cosine_to_float32"] == {"mean": 0.9998, "min": 0.9995}

    answer = client.delete("/encoders/small", headers=lathe.admin)
    assert (answer.status_code, answer.json()) == (200, {"name": "small", "state": "stopped"})
    assert workers[0].ended
    gone = client.post("/embed", json=body)
    assert gone.status_code == 404 and gone.json()["error"]["code"] == "model_not_found"
    assert client.delete("/encoders/small", headers=lathe.admin).status_code == 404
    assert [encoder["name"] for encoder in client.get("/encoders").json()] == [DEFAULT_ENCODER.name]
    assert client.put("/encoders/small", headers=lathe.admin).status_code == 202  # until it is added again


def test_the_default_encoder_cannot_be_unloaded_and_an_unknown_one_not_loaded(lathe):
    default = lathe.client.delete(f"/encoders/{DEFAULT_ENCODER.name}", headers=lathe.admin)
    assert default.status_code == 409 and "always served" in default.json()["error"]["message"]
    assert lathe.client.put(f"/encoders/{DEFAULT_ENCODER.name}", headers=lathe.admin).status_code == 200
    unknown = lathe.client.put("/encoders/nobody", headers=lathe.admin)
    assert unknown.status_code == 404 and "lathe encoders add" in unknown.json()["error"]["message"]


def test_a_server_warns_of_a_chat_template_in_its_health(lathe, chatty_model):
    added = AddedEncoders(lathe.settings.home)
    for choice, warned in ((None, 1), ("off", 0)):
        added.add(EncoderSettings(name="chatty", model=str(chatty_model), chat_template=choice), set())
        lathe.client.put("/encoders/chatty", headers=lathe.admin)
        eventually(lambda: lathe.services.embedder.engines["chatty"].state == "ready")
        warnings = lathe.client.get("/health").json()["warnings"]
        assert sum("chatty wraps its texts" in warning for warning in warnings) == warned
        described = lathe.client.get("/encoders").json()[1]
        assert (described["chat_template"], described["warning"] is not None) == (choice, bool(warned))
        assert lathe.client.delete("/encoders/chatty", headers=lathe.admin).status_code == 200
        added.remove("chatty")
