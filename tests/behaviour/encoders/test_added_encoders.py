import numpy as np
import pytest

from lathe.service.encoder_settings import AddedEncoders, EncoderSettings
from lathe.service.errors import ConflictError, UnknownNameError
from lathe.service.settings import read_settings
from lathe.training.encoder.spec import DEFAULT_ENCODER, DEFAULT_MODEL

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
    ("arguments", "exit_status", "word"),
    [
        (["add", "small", "--model", DEFAULT_MODEL, "--dtype", "int8"], 2, "'--dtype'"),
        (["add", "small", "--model", DEFAULT_MODEL, "--max-length", "1"], 1, "max_length"),
        (["add", "a+b", "--model", DEFAULT_MODEL], 1, "name"),
        (["add", "small", "--model", DEFAULT_MODEL, "--layer", "7"], 1, "layers 1 to 6, not 7"),
        (["remove", "small"], 1, "'small'"),
        (["remove", "mine"], 1, "LATHE_ENCODERS"),
    ],
)
def test_encoders_commands_fail_for_invalid_arguments_and_change_nothing(run, home, arguments, exit_status, word):
    status, _, err = run("encoders", *arguments, LATHE_ENCODERS='[{"name": "mine", "model": "a/model"}]')
    assert status == exit_status and word in err
    assert AddedEncoders(home).read() == []


@pytest.fixture
def small(lathe, tiny_model):
    """Add an encoder to the running server's state folder and return its name. It is not loaded afterwards."""
    added = AddedEncoders(lathe.settings.home)
    added.add(SMALL.model_copy(update={"model": str(tiny_model), "layer": None, "max_length": 20}), set())
    yield SMALL.name
    added.remove(SMALL.name)
    if SMALL.name in lathe.services.embedder.engines:
        lathe.services.embedder.remove(SMALL.name).stop(0)


@pytest.mark.release
def test_an_admin_can_load_and_unload_an_added_encoder_while_the_server_runs(lathe, small):
    client, body = lathe.client, {"inputs": ["a red bicycle", "x"], "model": small, "prompt_name": "q"}
    assert client.put("/encoders/small").status_code == 401 and small not in lathe.services.embedder.engines
    answer = client.put("/encoders/small", headers=lathe.admin)
    assert (answer.status_code, answer.json()) == (202, {"name": "small", "state": "loading"})
    early = client.post("/embed", json=body)
    assert early.status_code == 503 and early.json()["error"]["code"] == "not_ready"
    assert lathe.services.embedder.engines["small"].settled.wait(60)
    again = client.put("/encoders/small", headers=lathe.admin)
    assert (again.status_code, again.json()) == (200, {"name": "small", "state": "ready"})

    prompted = {"inputs": ["find: a red bicycle", "find: x"], "model": small}
    np.testing.assert_allclose(client.post("/embed", json=body).json(), client.post("/embed", json=prompted).json())
    assert len(client.post("/embed", json={"inputs": "x"}).json()[0]) == 384  # the default is what it was
    first, second = client.get("/encoders").json()
    assert [first["name"], second["name"], second["state"]] == [DEFAULT_ENCODER.name, "small", "ready"]
    assert (second["max_length"], second["workers"], second["dtype"]) == (20, 1, "float32")

    answer = client.delete("/encoders/small", headers=lathe.admin)
    assert (answer.status_code, answer.json()) == (200, {"name": "small", "state": "stopped"})
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


@pytest.mark.parametrize(("choice", "warned"), [(None, 1), ("off", 0)])
def test_a_server_warns_of_a_chat_template_in_its_health(serve_encoder, chatty_model, choice, warned):
    with serve_encoder("chatty", model=str(chatty_model), chat_template=choice) as app:
        warnings = app.client.get("/health").json()["warnings"]
        assert sum("chatty wraps its texts" in warning for warning in warnings) == warned
        described = app.client.get("/encoders").json()[1]
        assert (described["chat_template"], described["warning"] is not None) == (choice, bool(warned))
