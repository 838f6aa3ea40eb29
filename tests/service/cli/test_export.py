import json

import faiss
import numpy as np
import onnxruntime
import pytest
import torch
from sentence_transformers import SentenceTransformer

from lathe.service.chains.registry import STARTERS, Registry
from lathe.training.export.folder import import_shipped
from lathe.transforms import PCA, Chain, Int8, QueryAdapter
from tests.helpers import require_one_line


@pytest.fixture(scope="module")
def compact():
    return Chain.load(STARTERS / "compact" / "1")


@pytest.fixture(scope="module")
def raw(encoder, sentences):
    return encoder.encode(sentences).vectors


@pytest.fixture
def unnamed_encoder(run, tmp_path, home):
    """Fit a chain on vectors of an unknown encoder, and return it."""
    rows = np.random.default_rng(0).normal(size=(300, 384)).astype(np.float32) + 0.2
    np.save(tmp_path / "rows.npy", rows)
    if not (home / "chains/unnamed_encoder").exists():
        assert (
            run("fit", "--name", "unnamed_encoder", "--steps", "r2,pca:16", "--source", tmp_path / "rows.npy")[0] == 0
        )
    return Chain.load(home / "chains/unnamed_encoder/1")


def in_index(folder, rows):
    """Apply an exported faiss transform to rows."""
    index = faiss.read_index(str(folder / "chain.index"))
    index.add(rows)
    return index.index.reconstruct_n(0, len(rows))


def in_graph(folder, rows):
    """Apply an exported ONNX graph to rows."""
    return onnxruntime.InferenceSession(folder / "chain.onnx").run(["embeddings"], {"vectors": rows})[0]


def listed(folder):
    """Return the paths of all files in a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.release
def test_export_without_a_format_writes_a_sentence_transformers_model_of_the_chosen_dimensions(
    run, compact, sentences, raw, tmp_path
):
    status, out, err = run("export", "compact", "--to", tmp_path / "model", "--dimensions", 64)
    assert status == 0 and "of compact@1" in err
    assert out.startswith(str(tmp_path / "model")) and all(name in out for name in listed(tmp_path / "model"))
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert model.get_embedding_dimension() == 64
    np.testing.assert_allclose(model.encode(sentences), compact.transform(raw, dimensions=64), atol=1e-4)


@pytest.mark.release
def test_export_onnx_writes_the_chain_and_its_encoder_as_graphs(run, compact, raw, tmp_path):
    status, out, err = run("export", "compact@1", "--to", tmp_path / "graph", "--format", "onnx")
    assert status == 0 and "of compact@1" in err
    assert {"chain.onnx", "model.onnx", "tokenizer.json"} <= set(listed(tmp_path / "graph"))
    assert all(name in out for name in listed(tmp_path / "graph"))
    np.testing.assert_allclose(in_graph(tmp_path / "graph", raw), compact.transform(raw), atol=1e-4)


def test_export_faiss_writes_transforms_that_equal_the_chain_and_what_it_is_to_lathe_json(run, compact, raw, tmp_path):
    status, out, _ = run("export", "compact", "--to", tmp_path / "index", "--format", "faiss")
    assert status == 0 and all(name in out for name in listed(tmp_path / "index"))
    np.testing.assert_allclose(in_index(tmp_path / "index", raw), compact.transform(raw), atol=1e-4)
    said = json.loads((tmp_path / "index/lathe.json").read_text())
    assert said["chain"] == "compact@1"
    assert said["steps"] == compact.specs()
    assert said["certificate"] == compact.metadata["certificate"]
    assert (tmp_path / "index/README.md").read_text().startswith("# compact@1\n")


def test_export_faiss_with_dimensions_cuts_a_nested_chain(run, compact, raw, tmp_path):
    arguments = ["export", "compact", "--to", tmp_path / "index", "--format", "faiss", "--dimensions", 64]
    assert run(*arguments)[0] == 0
    found = in_index(tmp_path / "index", raw)
    assert found.shape == (len(raw), 64)
    np.testing.assert_allclose(found, compact.transform(raw, dimensions=64), atol=1e-4)
    assert "384 → 64 dimensions" in (tmp_path / "index/README.md").read_text()
    assert json.loads((tmp_path / "index/lathe.json").read_text())["output_dimensions"] == 64


def test_export_prints_one_line_and_writes_nothing_for_an_unknown_chain_or_size(run, tmp_path):
    for arguments, format_, *words in [
        (["nobody"], "sentence-transformers", "no chain 'nobody'", "compact"),
        (["compact@7"], "onnx", "no version 7"),
        (["compact", "--dimensions", "129"], "faiss", "any number up to 128 dimensions", "129"),
        (["debias", "--dimensions", "64"], "sentence-transformers", "only 384", "64"),
    ]:
        require_one_line(run("export", *arguments, "--to", tmp_path / "out", "--format", format_), *words)
    assert not any(tmp_path.iterdir())


def test_export_model_of_a_chain_without_an_encoder_needs_an_encoder_option(
    run, home, unnamed_encoder, tiny_model, sentences, tmp_path
):
    require_one_line(run("export", "unnamed_encoder", "--to", tmp_path / "model"), "name their encoder")
    unknown = run("export", "unnamed_encoder", "--to", tmp_path / "model", "--encoder", "/nowhere/model")
    require_one_line(unknown, "cannot be loaded")
    assert not (tmp_path / "model").exists()
    chain = Chain([PCA(4).fit(np.random.default_rng(0).normal(size=(60, 16)).astype(np.float32))])
    Registry(home / "chains").publish(chain, "narrow", True)
    assert run("export", "narrow", "--to", tmp_path / "model", "--encoder", tiny_model)[0] == 0
    plain, exported = (SentenceTransformer(str(folder), device="cpu") for folder in (tiny_model, tmp_path / "model"))
    np.testing.assert_allclose(exported.encode(sentences), chain.transform(plain.encode(sentences)), atol=1e-4)


@pytest.fixture
def five_bits(run, unnamed_encoder, tmp_path, home):
    """A chain of codes whose coordinates have five bits each."""
    if not (home / "chains/five-bits").exists():
        arguments = ("--steps", "whitening:16,codes:10", "--source", tmp_path / "rows.npy")
        assert run("fit", "--name", "five-bits", *arguments)[0] == 0
    return Chain.load(home / "chains/five-bits/1")


def test_export_numpy_writes_a_codec_that_decodes_codes_which_faiss_cannot_and_neither_takes_an_encoder(
    run, five_bits, raw, tmp_path
):
    status, out, _ = run("export", "five-bits", "--to", tmp_path / "codec", "--format", "numpy")
    assert status == 0 and all(name in out for name in listed(tmp_path / "codec"))
    codec = import_shipped(tmp_path / "codec/lathe_codes.py").Codec(tmp_path / "codec/codes.npz")
    codes = five_bits.transform(raw)
    np.testing.assert_allclose(codec.decode(codes), five_bits.dequantize(codes), atol=1e-5)
    for format_ in ("faiss", "numpy"):
        options = ("--to", tmp_path / "out", "--format", format_, "--encoder", "all-MiniLM-L6-v2")
        require_one_line(run("export", "five-bits", *options), format_, "leave --encoder out")
    refused = run("export", "five-bits", "--to", tmp_path / "out", "--format", "faiss")  # its codes cross bytes
    require_one_line(refused, "codes of 10 bytes", "another budget", "--format numpy")


def test_an_encoder_behind_an_embeddings_api_is_refused(run, tmp_path):
    """A folder cannot hold its weights. Nothing is asked of it."""
    far = [{"name": "far", "upstream": {"url": "http://127.0.0.1:9/v1", "protocol": "openai", "model": "far"}}]
    arguments = ("--to", tmp_path / "out", "--encoder", "far")
    result = run("export", "compact", *arguments, LATHE_ENCODERS=json.dumps(far))
    require_one_line(result, "far is behind an embeddings API, which no export can hold")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def two_sided(home):
    """Publish a chain with an adapter before a reduction, and one with codes at its end, and return the first."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 32)).astype(np.float32)
    weight = torch.from_numpy(np.eye(32) + rng.normal(size=(32, 32)) / 6).float()
    adapter = QueryAdapter().restore({"weight": weight, "query_count": torch.tensor([300])})
    chain = Chain([adapter, PCA(8).fit(rows)])
    registry = Registry(home / "chains")
    if not (home / "chains/two_sided").exists():
        registry.publish(chain, "two_sided", True)
        registry.publish(Chain([adapter, Int8().fit(rows)]), "two_sided_codes", True)
    return chain


def test_each_side_of_a_chain_is_exported_for_itself(run, two_sided, tmp_path):
    rows = np.random.default_rng(1).normal(size=(20, 32)).astype(np.float32)
    for side, expected in (("query", two_sided.transform_queries(rows)), ("document", two_sided.transform(rows))):
        out = tmp_path / side
        assert run("export", "two_sided", "--format", "faiss", "--side", side, "--to", out)[0] == 0
        np.testing.assert_allclose(in_index(out, rows), expected, atol=1e-4)
        assert json.loads((out / "lathe.json").read_text())["side"] == side


def test_export_refuses_a_missing_a_superfluous_and_an_impossible_side(run, two_sided, tmp_path):
    for arguments, *words in [
        (["two_sided"], "maps queries otherwise than documents", "--side query and --side document"),
        (["two_sided_codes", "--side", "document"], "ends in int8", "cannot export it"),
        (["compact", "--side", "query"], "maps queries and documents alike: leave --side out"),
    ]:
        require_one_line(run("export", *arguments, "--format", "faiss", "--to", tmp_path / "out"), *words)
    assert not (tmp_path / "out").exists()
