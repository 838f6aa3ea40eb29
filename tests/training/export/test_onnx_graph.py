import contextlib
import re
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from transformers import AutoTokenizer

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.export.folder import PROBE_TEXTS
from lathe.training.export.onnx_graph import export_onnx
from lathe.transforms import Chain, parse_steps

FLOATS = {
    "an affine map with a bias to unit length": ("whitening:32", True),
    "two affine maps": ("r2,geopres:40,steps=5", False),
    "a normalisation": ("normalize,pca:48", True),
    "a selection to unit length": ("truncation:40", True),
}
CODES = {"bytes of any length": ("pca:20,int8", False), "bits that leave part of a byte": ("pca:13,binary", False)}
CHAINS = FLOATS | CODES
TEXTS = [
    "lathe",
    "A chuck holds the workpiece while the carriage moves along the bed.",
    " ".join(f"word{number} of a long text" for number in range(60)),
    "東京の天気は晴れです。 Übergrößenträger 🚲 ﷽ e\u0301",
    "\t spaces \n and lines \r\n",
]


@pytest.fixture(scope="module")
def make(fitted, tmp_path_factory):
    """Return a function that exports a chain, each once, and returns chain, export and ONNX session."""
    made = {}

    def export(name):
        if name not in made:
            chain = fitted(*CHAINS[name])
            folder = tmp_path_factory.mktemp("graphs") / "graph"
            exported = export_onnx(chain, None, folder, f"{name}@1")
            made[name] = chain, exported, onnxruntime.InferenceSession(folder / "chain.onnx")
        return made[name]

    return export


@pytest.fixture(scope="module", params=CHAINS)
def export(request, make):
    return make(request.param)


@pytest.fixture(params=FLOATS)
def of_floats(request, make):
    return make(request.param)


@pytest.fixture(params=CODES)
def of_codes(request, make):
    return make(request.param)


@pytest.fixture(scope="module")
def shallow():
    """Return an encoder of one layer, since the export takes two seconds for each."""
    return Encoder(replace(DEFAULT_ENCODER, name="shallow", layer=1, max_length=64), "cpu")


@pytest.fixture(scope="module")
def whole(shallow, texts, tmp_path_factory):
    """Export a chain and its encoder as one model."""
    chain = Chain(parse_steps("r2,geopres:20,steps=5,int8")).fit(shallow.encode(texts).vectors)
    chain.metadata = {"encoder": shallow.describe()}
    folder = tmp_path_factory.mktemp("whole") / "model"
    exported = export_onnx(chain, shallow, folder, "whole@1")
    return chain, exported, onnxruntime.InferenceSession(folder / "model.onnx")


def rows_of(*, vectors, width, seed=1, scale=1.0):
    """Return real rows, a zero row and random rows."""
    random = np.random.default_rng(seed).standard_normal((60, width)).astype(np.float32)
    random /= np.linalg.norm(random, axis=1, keepdims=True)
    return (np.concatenate([vectors, np.zeros((1, width), np.float32), random]) * scale).astype(np.float32)


def assert_agree(chain, session, rows):
    """Assert that the graph's embeddings equal the chain's floats."""
    found, expected = session.run(["embeddings"], {"vectors": rows})[0], chain.transform_queries(rows)
    assert found.shape == expected.shape and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_the_graph_equals_the_chain_on_any_number_of_real_random_and_zero_rows(export, vectors, new_vectors):
    chain, _, session = export
    rows = rows_of(vectors=new_vectors, width=384)
    zero = ~rows.any(axis=1)
    for some in (rows[~zero], vectors[:1], vectors[:7]):
        assert_agree(chain, session, some)
    found = session.run(["embeddings"], {"vectors": rows})[0]
    assert zero.sum() == 1 and np.isfinite(found).all() and found[~zero].any()
    np.testing.assert_array_equal(found[zero], chain.transform_queries(rows[zero]))
    for row, expected in zip(rows[:3], found[:3], strict=True):
        np.testing.assert_allclose(session.run(["embeddings"], {"vectors": row[None]})[0][0], expected, atol=1e-3)


def test_the_graph_is_valid_and_has_outputs_for_codes_only_if_the_chain_has_them(export):
    chain, exported, session = export
    onnx.checker.check_model(onnx.load(exported.folder / "chain.onnx"), full_check=True)
    coded = chain.quantizer is not None
    assert [one.name for one in session.get_outputs()] == ["embeddings", *(["codes"] if coded else [])]
    assert b"site-packages" not in (content := (exported.folder / "chain.onnx").read_bytes()) and b".py" not in content
    assert session.get_inputs()[0].shape[1] == 384
    assert session.get_outputs()[0].shape[1] == chain.output_dimensions
    assert exported.files == ["README.md", "chain.onnx", "lathe.json"]
    assert sorted(path.name for path in exported.folder.iterdir()) == exported.files
    assert 0 <= exported.difference <= 1e-4


def test_the_graph_equals_the_chain_on_rows_of_any_norm_and_maps_nan_to_nan(of_floats, new_vectors):
    chain, _, session = of_floats
    for length in (1e-12, 1e-3, 1e3, 1e12, *((1e-30, 1e30) if chain.normalize else ())):
        rows = (new_vectors * length).astype(np.float32)
        found, expected = session.run(["embeddings"], {"vectors": rows})[0], chain.transform(rows)
        largest = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(found / largest, expected / largest, atol=1e-4)
    rows = np.ones((2, chain.input_dimensions), np.float32)
    rows[0] = np.nan
    found = session.run(["embeddings"], {"vectors": rows})[0]
    assert np.isnan(found[0]).all() and np.isfinite(found[1]).all()


def test_the_graphs_codes_equal_those_of_the_chain(of_codes, vectors, new_vectors, decided):
    chain, _, session = of_codes
    rows = rows_of(vectors=np.concatenate([vectors, new_vectors]), width=384)
    rows = rows[rows.any(axis=1)]
    codes, expected = session.run(["codes"], {"vectors": rows})[0], chain.transform(rows)
    assert (codes.dtype, codes.shape) == (expected.dtype, expected.shape)
    assert codes.shape[1] == chain.bytes_per_vector
    if codes.dtype == np.int8:
        differences = np.abs(codes.astype(int) - expected)
        assert differences.max() <= 1
    else:
        differences = (np.unpackbits(codes, axis=1) != np.unpackbits(expected, axis=1))[:, : chain.output_dimensions]
        assert not np.unpackbits(codes, axis=1)[:, chain.output_dimensions :].any()
    assert not differences[decided(chain, rows)].any()


def test_the_readme_code_of_a_chain_alone_gives_the_chains_vectors(make, new_vectors):
    chain, exported, _ = make("a normalisation")
    (code,) = re.findall(r"```python\n(.*?)\n```", (exported.folder / "README.md").read_text(), re.DOTALL)
    *lines, last = code.splitlines()
    names = {"vectors": new_vectors}
    with contextlib.chdir(exported.folder):
        exec("\n".join(lines), names)
        (found,) = eval(last, names)
    np.testing.assert_allclose(found, chain.transform(new_vectors), atol=1e-4)


@pytest.mark.release  # the first export of an encoder takes ten seconds
def test_a_whole_model_maps_tokens_to_the_vectors_and_codes_of_encoder_and_chain(whole, shallow, decided):
    chain, exported, session = whole
    assert {"README.md", "chain.onnx", "lathe.json", "model.onnx", "tokenizer.json"} <= {*exported.files}
    assert sorted(path.name for path in exported.folder.iterdir()) == exported.files
    onnx.checker.check_model(onnx.load(exported.folder / "model.onnx"), full_check=True)
    assert not set(TEXTS) & set(PROBE_TEXTS)
    tokenizer = AutoTokenizer.from_pretrained(exported.folder)
    raw = shallow.encode(TEXTS).vectors
    expected, codes, clear = chain.transform_queries(raw), chain.transform(raw), decided(chain, raw)
    for size in (1, len(TEXTS)):
        for start in range(0, len(TEXTS), size):
            rows = slice(start, start + size)
            batch = tokenizer(
                TEXTS[rows], padding=True, truncation=True, max_length=shallow.max_length, return_tensors="np"
            )
            given = {one.name: batch[one.name] for one in session.get_inputs()}
            found, coded = session.run(["embeddings", "codes"], given)
            np.testing.assert_allclose(found, expected[rows], atol=1e-4)
            assert coded.dtype == np.int8
            np.testing.assert_array_equal(coded[clear[rows]], codes[rows][clear[rows]])
