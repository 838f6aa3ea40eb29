"""Sizes and chains in the value of `model`, and what `/v1/models` lists of them."""

from types import SimpleNamespace

import numpy as np
import pytest

from lathe.service.encoders.model_names import parse_model
from lathe.service.errors import BadValueError, UnknownNameError

ENCODER = "all-MiniLM-L6-v2"
COMPACT = f"{ENCODER}+compact"


def embed(client, path="/v1/embeddings", **body):
    """Post texts to a route of vectors and return the answer."""
    return client.post(path, json={("inputs" if path == "/embed" else "input"): ["a red bicycle", "tea"]} | body)


def vectors_of(answer):
    """Return the vectors of a route's JSON answer."""
    assert answer.status_code == 200, answer.text
    content = answer.json()
    return np.array(content if isinstance(content, list) else [item["embedding"] for item in content["data"]])


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embed"])
def test_a_size_in_the_model_name_gives_the_vectors_and_space_of_the_field_dimensions(client, path):
    for name, fields in [
        (f"{ENCODER}:64", {"model": ENCODER, "dimensions": 64}),
        (f"{ENCODER}:384", {"model": ENCODER}),
        (f"{COMPACT}:48", {"model": COMPACT, "dimensions": 48}),
        (f"{COMPACT}@1:128", {"model": COMPACT}),
        ("+compact:32", {"model": COMPACT, "dimensions": 32}),
        (":100", {"dimensions": 100}),
        (f"sentence-transformers/{COMPACT}:64", {"model": COMPACT, "dimensions": 64}),
    ]:
        named, asked = embed(client, path, model=name), embed(client, path, **fields)
        np.testing.assert_allclose(vectors_of(named), vectors_of(asked), atol=1e-6, err_msg=name)
        for header in ("x-space-id", "x-chain", "x-dimensions"):
            assert named.headers[header] == asked.headers[header], name


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embed"])
def test_a_size_in_the_model_name_and_another_in_dimensions_are_answered_400(client, path):
    answer = embed(client, path, model=f"{ENCODER}:64", dimensions=128)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "dimensions"
    assert "asks for 64 dimensions, the field `dimensions` for 128" in answer.json()["error"]["message"]
    assert vectors_of(embed(client, path, model=f"{ENCODER}:64", dimensions=64)).shape == (2, 64)


def test_an_impossible_model_name_with_a_size_is_refused(client):
    for name, status, param in [
        (f"{ENCODER}:0", 400, "model"),
        (f"{ENCODER}:064", 400, "model"),
        (f"{ENCODER}:{'9' * 5000}", 400, "model"),
        (f"{ENCODER}:200", 400, "dimensions"),
        (f"{COMPACT}:129", 400, "dimensions"),
        (f"{ENCODER}:latest", 404, "model"),
        (f"{ENCODER}:64+compact", 404, "model"),
        (f"{ENCODER}+nothing:64", 404, "chain"),
    ]:
        answer = embed(client, model=name)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text


def test_a_model_list_holds_sizes_after_encoders_and_chains_and_every_one_is_served(client):
    names = [model["id"] for model in client.get("/v1/models").json()["data"]]
    assert names[0] == ENCODER and COMPACT in names
    sized = [name for name in names if ":" in name]
    assert {f"{ENCODER}:128", f"{ENCODER}:64", f"{COMPACT}:64", f"{COMPACT}:32"} <= set(sized)
    assert names[-len(sized) :] == sized and len(set(names)) == len(names)
    for name in names:
        assert client.get(f"/v1/models/{name}").json()["id"] == name
        answer = embed(client, model=name)
        assert answer.status_code == 200 and answer.headers["x-dimensions"] == (
            name.partition(":")[2] or answer.headers["x-dimensions"]
        )


def test_show_model_accepts_sizes_that_are_not_listed_and_refuses_those_not_served(client):
    assert client.get(f"/v1/models/{COMPACT}:100").json()["id"] == f"{COMPACT}:100"
    for name in (f"{COMPACT}:129", f"{ENCODER}:200", f"{ENCODER}:0", "nobody", f"{ENCODER}+nothing"):
        answer = client.get(f"/v1/models/{name}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found"), name
        assert answer.json()["error"]["message"].count("there is no model") <= 1


def test_a_model_list_is_found_with_a_slash_too_and_head_is_answered_wherever_get_is(client):
    assert client.get("/v1/models/").json() == client.get("/v1/models").json()
    for path in ("/v1/models", f"/v1/models/{ENCODER}", "/info", "/metrics", "/docs", "/health", "/chains/compact"):
        answer, whole = client.head(path), client.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, whole.headers["content-type"]), path
    assert client.head("/embed").status_code == 405 and client.head("/chains/nobody").status_code == 404


def choose(model, *encoders):
    """Parse a model name where these encoders are served and return encoder, chain and dimensions."""

    def find(name):
        if name not in (None, *encoders):
            raise UnknownNameError(name)
        return SimpleNamespace(name=name or encoders[0])

    choice = parse_model(model, find, set(encoders))
    return choice.engine.name, choice.chain, choice.dimensions


def test_an_exact_name_of_an_encoder_wins_over_a_size_or_chain_in_it():
    served = ("nomic", "nomic:latest", "nomic:64", "org/model+more:8")
    assert choose("nomic:latest", *served) == ("nomic:latest", None, None)
    assert choose("nomic:latest+mine:32", *served) == ("nomic:latest", "mine", 32)
    assert choose("nomic:64", *served) == ("nomic:64", None, None)
    assert choose("nomic:64:32", *served) == ("nomic:64", None, 32)
    assert choose("nomic:64+mine", *served) == ("nomic:64", "mine", None)
    assert choose("nomic:64", "nomic") == ("nomic", None, 64)
    assert choose("org/model+more:8", *served) == ("org/model+more:8", None, None)
    assert choose("", *served) == choose(None, *served) == ("nomic", None, None)
    with pytest.raises(UnknownNameError, match=r"^nomic:old$"):
        choose("nomic:old+mine:8", *served)
    with pytest.raises(BadValueError, match="not a number of dimensions"):
        choose("nomic:0", *served)
