"""Texts for which an encoder gives NaN or inf: errors of these texts alone, on every way to a vector."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lathe.service.encoder_settings import AddedEncoders, EncoderSettings

NAME = "fragile"


@pytest.fixture(scope="module")
def app(serve_encoder, fragile_model):
    """Serve an encoder that overflows on the word `volcano`."""
    with serve_encoder(NAME, model=str(fragile_model), dtype="float16") as app:
        yield app


def embed(app, *texts, **fields):
    return app.client.post("/embed", json={"inputs": list(texts), "model": NAME} | fields)


def assert_refused(answer, position, param="inputs"):
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (422, "not_finite", param), answer.text
    assert error["message"].startswith(f"input {position}: {NAME} gives NaN or inf for this text in float16")


def test_a_text_without_a_finite_vector_is_answered_422_with_its_position_and_never_cached(app):
    """The position counts the texts that the cache had, too."""
    for _ in range(2):
        assert_refused(embed(app, "tea", "a volcano"), 1)
    assert embed(app, "tea", "rain").status_code == 200
    for fields in ({}, {"normalize": False}, {"truncate": False}, {"output_dtype": "ubinary"}):
        assert_refused(embed(app, "tea", "rain", "volcano", "snow", **fields), 2)
    answer = app.client.post("/v1/embeddings", json={"input": ["volcano"], "model": NAME})
    assert_refused(answer, 0)
    assert np.isfinite(embed(app, "tea", "rain", "snow").json()).all()


def test_other_callers_in_the_same_batches_get_their_vectors(app):
    expected = {text: embed(app, text).json() for text in ("tea", "rain", "snow")}
    asked = ["tea", "a volcano 0", "rain", "a volcano 1", "snow"] * 8
    fresh = [f"{text} {number}" if "volcano" in text else text for number, text in enumerate(asked)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda text: embed(app, text, truncate=False), fresh))  # none is from the cache
    for text, answer in zip(fresh, answers, strict=True):
        if "volcano" in text:
            assert_refused(answer, 0)
        else:
            np.testing.assert_allclose(answer.json(), expected[text], atol=2e-3)


def test_an_index_takes_no_item_whose_text_has_no_finite_vector(app):
    body = {"encoder": NAME, "chain": "none"}
    assert app.client.put("/indexes/hot", json=body, headers=app.admin).status_code in (200, 201)
    items = {"ids": ["a", "b"], "texts": ["tea", "a volcano"]}
    assert_refused(app.client.post("/indexes/hot/upsert", json=items), 1)
    assert app.client.get("/indexes/hot").json()["count"] == 0
    assert_refused(app.client.post("/indexes/hot/search", json={"texts": "volcano", "k": 1}), 0)
    assert app.client.delete("/indexes/hot", headers=app.admin).status_code == 200


def test_commands_name_the_row_of_a_text_without_a_finite_vector_and_write_nothing(run, home, fragile_model, tmp_path):
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.npy"
    words = ["tea", "rain", "snow", "hail", "a volcano", "wind"]
    source.write_text("".join(f'{{"id": "{word[-4:]}", "text": "{word}"}}\n' for word in words))
    AddedEncoders(home).add(EncoderSettings(name=NAME, model=str(fragile_model), dtype="float16"), set())
    place = "row 5 of rows.jsonl: fragile gives NaN or inf"
    status, _, err = run("embed", "--source", source, "--encoder", NAME, "--out", out)
    assert status == 1 and place in err and not out.exists()
    status, _, err = run("fit", "--name", "mine", "--source", source, "--encoder", NAME, "--steps", "r2")
    assert status == 1 and place in err
    given = ["--name", "hot", "--source", source, "--encoder", NAME, "--chain", "none"]
    status, _, err = run("index", "import", *given)
    assert status == 1 and "row 5: fragile gives NaN or inf" in err
    assert not (home / "indexes" / "hot").exists()
