"""Commands on folders of models of other kinds than the default encoder."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import BoW, StaticEmbedding

from lathe.service.encoders.engine.worker import _load_encoder
from tests.behaviour.encoders.tiny_models import POSITIONS, TinyModel, build_tokenizer

LONG = "a word after another " * 175


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"a line about {number} things\n" for number in range(200)) + LONG + "\n")
    return path


@pytest.fixture
def static_model(tmp_path):
    torch.manual_seed(0)
    modules = [StaticEmbedding(build_tokenizer(), embedding_dim=16)]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "static"), create_model_card=False)
    return tmp_path / "static"


@pytest.mark.parametrize("kind", ["static", "truncated"])
def test_a_chain_of_a_folder_is_exported_and_its_model_served_in_any_dtype(run, tmp_path, lines, static_model, kind):
    """What the model completes, such as its maximum length, is not taken for a setting when it is loaded again."""
    if kind == "static":
        folder = static_model
    else:
        folder = TinyModel("roberta", dtype="float16", fields="truncate_dim").write(tmp_path / kind)
    status, _, err = run("fit", "--name", kind, "--steps", "r2,pca:6", "--encoder", folder, "--source", lines)
    assert status == 0, err
    assert run("export", kind, "--to", tmp_path / "model")[0] == 0

    status, out, err = run("encoders", "add", f"out-{kind}", "--model", tmp_path / "model", "--dtype", "bfloat16")
    assert status == 0 and out.startswith(f"out-{kind}: 6 dimensions"), err
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(["a line", "another one"])
    assert run("embed", "--source", lines, "--out", tmp_path / "v.npy", "--encoder", folder, "--chain", kind)[0] == 0
    np.testing.assert_allclose(np.linalg.norm(theirs, axis=1), 1, atol=1e-5)
    assert np.load(tmp_path / "v.npy").shape == (201, 6)
    if kind == "static":
        status, _, err = run("export", kind, "--to", tmp_path / "graph", "--format", "onnx")
        assert status == 1 and err.count("\n") == 1 and "is static" in err


def test_commands_and_worker_agree_on_the_positions_of_a_model(run, tmp_path, lines):
    folder = TinyModel("xlm-roberta").write(tmp_path / "xlm")
    status, out, _ = run("encoders", "add", "xlm", "--model", folder, "--dtype", "float32")
    assert status == 0 and f"xlm: 32 dimensions, {POSITIONS - 2} tokens" in out
    assert run("embed", "--source", lines, "--out", tmp_path / "v.npy", "--encoder", "xlm")[0] == 0

    spec = {"name": "xlm", "model": str(folder)}
    encoder, described = _load_encoder({"spec": spec, "options": {"threads": 1, "device": "cpu", "batch_tokens": None}})
    assert described["max_length"] == POSITIONS - 2
    np.testing.assert_allclose(encoder.encode([LONG]).vectors[0], np.load(tmp_path / "v.npy")[-1], atol=1e-5)
    status, _, err = run("encoders", "add", "long", "--model", folder, "--max-length", POSITIONS - 1)
    assert status == 1 and f"long reads 3 to {POSITIONS - 2} tokens, not max_length {POSITIONS - 1}" in err


def test_a_model_that_cannot_be_served_is_not_added_and_the_reason_is_one_line(run, tmp_path):
    SentenceTransformer(modules=[BoW(["cat"])], device="cpu").save(str(tmp_path / "glove"), create_model_card=False)
    status, _, err = run("encoders", "add", "glove", "--model", tmp_path / "glove")
    assert status == 1 and err.count("\n") == 1 and "glove begins with the module BoW, which is not" in err
    assert "glove" not in run("encoders", "list")[1]
