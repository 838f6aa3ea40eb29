"""Exports of chains that end in `codes`: NumPy, ONNX and FAISS."""

import ast
import copy
import re
import sys

import faiss
import numpy as np
import onnxruntime
import pytest
import torch

from lathe.training.errors import ExportError
from lathe.training.export.faiss_transforms import export_faiss
from lathe.training.export.folder import import_shipped
from lathe.training.export.numpy_codec import export_numpy
from lathe.training.export.onnx_graph import export_onnx
from lathe.transforms import Chain, parse_steps
from lathe.transforms.codes.lloyd_max import build_normal_quantizer

WHOLE_BYTES = {
    "bits by variance": ("r2,codes:24", True),
    "one byte": ("codes:1", True),
    "norms that vary": ("random_selection:64,codes:12", False),
    "two maps": ("mc,normalize,pca:48,codes:9", True),
}
CHAINS = {
    "coordinates that cross bytes": ("whitening:32,codes:20", True),
    "equal bits, norms that vary": ("random_selection:64,codes:12,bits=4", False),
}
FORMATS = {
    "numpy": lambda chain, folder: export_numpy(chain, folder, "codes@1"),
    "faiss": lambda chain, folder: export_faiss(chain, folder, "codes@1"),
    "onnx": lambda chain, folder: export_onnx(chain, None, folder, "codes@1"),
}


@pytest.fixture(params=CHAINS)
def chain(request, fitted):
    return fitted(*CHAINS[request.param])


@pytest.fixture(params=WHOLE_BYTES)
def of_whole_bytes(request, fitted):
    return fitted(*WHOLE_BYTES[request.param])


@pytest.fixture
def rows(vectors, new_vectors):
    return np.concatenate([vectors, np.zeros((1, vectors.shape[1]), np.float32), new_vectors])


@pytest.fixture
def codec(chain, tmp_path):
    folder = FORMATS["numpy"](chain, tmp_path / "codec").folder
    return import_shipped(folder / "lathe_codes.py").Codec(folder / "codes.npz")


def clear_rows(chain, rows):
    """Which rows have no coordinate within rounding of a threshold."""
    y = chain.quantizer.coordinates(torch.from_numpy(chain.transform_queries(rows))).numpy()
    thresholds = [build_normal_quantizer(bits).thresholds for bits in chain.quantizer.layout[0].tolist()]
    near = [np.abs(values[:, None] - edges).min(axis=1) < 2e-5 for values, edges in zip(y, thresholds, strict=True)]
    clear = ~np.any(near, axis=0)
    assert clear.mean() > 0.8
    return clear


def test_numpy_codec_encodes_decodes_and_scores_as_the_chain(chain, codec, rows, new_vectors):
    codes, clear = chain.transform(rows), clear_rows(chain, rows)
    found = codec.encode(rows)
    assert found.dtype == np.uint8 and found.shape == codes.shape
    np.testing.assert_array_equal(found[clear], codes[clear])
    np.testing.assert_allclose(codec.decode(codes), chain.dequantize(codes), atol=1e-5)
    expected = chain.quantizer.score(chain.transform_queries(new_vectors), codes)
    scores = codec.score(new_vectors, codes)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, atol=1e-4)


def test_numpy_codec_keeps_zero_vectors_zero(codec, chain):
    zero = np.zeros((1, chain.input_dimensions), np.float32)
    assert not codec.encode(zero).any()
    assert not codec.decode(codec.encode(zero)).any()
    assert not codec.score(np.ones_like(zero), codec.encode(zero)).any()


def test_numpy_codec_needs_numpy_alone_and_no_pickle(fitted, tmp_path):
    FORMATS["numpy"](fitted("codes:8"), tmp_path / "codec")
    nodes = list(ast.walk(ast.parse((tmp_path / "codec/lathe_codes.py").read_text())))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module.split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    assert imported == {"numpy", "pathlib", "types", "typing"}
    with np.load(tmp_path / "codec/codes.npz", allow_pickle=False) as file:
        assert all(file[name].dtype.kind in "fi" for name in file)


def test_an_onnx_graph_gives_the_floats_that_the_codec_beside_it_encodes(fitted, rows, tmp_path):
    chain = fitted(*CHAINS["coordinates that cross bytes"])
    folder = FORMATS["onnx"](chain, tmp_path / "graphs").folder
    (floats,) = onnxruntime.InferenceSession(folder / "chain.onnx").run(None, {"vectors": rows})
    np.testing.assert_allclose(floats, chain.transform_queries(rows), atol=1e-5)
    codec, clear = import_shipped(folder / "lathe_codes.py").Codec(folder / "codes.npz"), clear_rows(chain, rows)
    np.testing.assert_array_equal(codec.encode(rows)[clear], chain.transform(rows)[clear])


def searching(folder, documents):
    """The codes of an index of documents behind the map of queries."""
    index = faiss.IndexPreTransform(documents.index)
    names = sorted((path.name for path in folder.glob("[0-9]*.vt")), reverse=True)
    for name in ["queries.vt", *names]:
        index.prepend_transform(faiss.read_VectorTransform(str(folder / name)))
    return index


def without_adjustment(chain):
    """A copy of the chain whose codes are rounded only, as FAISS rounds."""
    chain = copy.deepcopy(chain)
    chain.quantizer.adjust_levels = False
    return chain


def test_faiss_index_encodes_and_orders_as_the_chain_without_norm_factors(
    of_whole_bytes, vectors, new_vectors, tmp_path
):
    chain, folder = of_whole_bytes, FORMATS["faiss"](of_whole_bytes, tmp_path / "index").folder
    documents = faiss.read_index(str(folder / "documents.index"))
    assert (documents.ntotal, documents.index.sa_code_size()) == (0, chain.bytes_per_vector)
    codes, clear = without_adjustment(chain).transform(vectors), clear_rows(chain, vectors)
    some = documents.sa_encode(vectors).any(axis=1)  # of one byte, some vectors lie in the lowest cells
    assert some.mean() > 0.95
    vectors, codes, clear = vectors[some], codes[some], clear[some]
    documents.add(vectors)
    np.testing.assert_array_equal(documents.sa_encode(vectors)[clear], codes[clear])
    scores, ids = searching(folder, documents).search(new_vectors, 10)
    queries = chain.transform_queries(new_vectors)
    ours = chain.quantizer.score(queries, documents.sa_encode(vectors), np.ones(len(vectors), np.float32))
    ours = ours - queries @ chain.quantizer.mean.numpy()[:, None]
    np.testing.assert_allclose(scores, -np.sort(-ours, axis=1)[:, :10], atol=1e-4)
    np.testing.assert_allclose(np.take_along_axis(ours, ids, axis=1), scores, atol=1e-4)


def test_faiss_index_takes_codes_of_the_chain(fitted, vectors, new_vectors, tmp_path):
    chain = fitted("r2,codes:24")
    folder = FORMATS["faiss"](chain, tmp_path / "index").folder
    ours, theirs = (faiss.read_index(str(folder / "documents.index")) for _ in range(2))
    ours.index.add_sa_codes(without_adjustment(chain).transform(vectors))
    theirs.add(vectors)
    found = [searching(folder, index).search(new_vectors, 5)[0] for index in (ours, theirs)]
    np.testing.assert_allclose(*found, atol=1e-3)


@pytest.mark.parametrize("format_", ["numpy", "faiss"])
def test_readme_code_runs_as_written(fitted, vectors, new_vectors, tmp_path, monkeypatch, format_):
    chain = fitted("mc,normalize,pca:48,codes:9")
    folder = FORMATS[format_](chain, tmp_path / "out").folder
    (code,) = re.findall(r"```python\n(.*?)\n```", (folder / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "lathe_codes", raising=False)
    names = {"vectors": vectors, "queries": new_vectors}
    exec(code, names)
    if format_ == "faiss":
        ours = chain.quantizer.score(chain.transform_queries(new_vectors[-1:]), chain.transform(vectors))[0]
        np.testing.assert_allclose(ours[names["best"]], -np.sort(-ours)[:10], atol=2e-3)


@pytest.fixture(scope="module")
def learned(encoder, vectors):
    """Return a chain with codebooks learned from more rows than there are centroids."""
    noise = np.random.default_rng(0).normal(scale=0.02, size=(8, *vectors.shape))
    rows = (vectors + noise).reshape(-1, vectors.shape[1]).astype(np.float32)
    chain = Chain(parse_steps("r2,product_codes:8,iterations=3")).fit(rows)
    chain.metadata = {"encoder": encoder.describe()}
    return chain


def test_exports_of_learned_codebooks_encode_and_search_as_the_chain(learned, rows, new_vectors, tmp_path):
    chain = learned
    codes = chain.transform(rows)
    folder = FORMATS["faiss"](chain, tmp_path / "index").folder
    codec = import_shipped(folder / "lathe_codes.py").Codec(folder / "codes.npz")
    np.testing.assert_array_equal(codec.encode(rows), codes)
    np.testing.assert_allclose(codec.decode(codes), chain.dequantize(codes), atol=1e-5)
    some = rows.any(axis=1)
    documents = faiss.read_index(str(folder / "documents.index"))
    rounded = without_adjustment(chain).transform(rows[some])
    np.testing.assert_array_equal(documents.sa_encode(rows[some]), rounded)
    documents.index.add_sa_codes(codes[some])
    scores, ids = searching(folder, documents).search(new_vectors, 10)
    queries = chain.transform_queries(new_vectors)
    ours = chain.quantizer.score(queries, codes[some], np.ones(some.sum(), np.float32))
    ours = ours - queries @ chain.quantizer.mean.numpy()[:, None]
    np.testing.assert_allclose(np.take_along_axis(ours, ids, axis=1), scores, atol=1e-4)


def test_export_faiss_refuses_coordinates_that_cross_bytes_and_suggests_what_to_do(fitted, tmp_path):
    with pytest.raises(ExportError, match=r"20 bytes.*stored in two bytes.*another budget.*bits=4.*--format numpy"):
        FORMATS["faiss"](fitted("whitening:32,codes:20"), tmp_path / "index")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("format_", FORMATS)
def test_export_refuses_a_chain_without_codes_or_that_is_not_fitted(fitted, tmp_path, format_):
    with pytest.raises(ExportError, match="not fitted"):
        FORMATS[format_](Chain(parse_steps("codes:8")), tmp_path / "out")
    if format_ == "numpy":
        with pytest.raises(ExportError, match="needs a chain that ends in codes"):
            FORMATS["numpy"](fitted("pca:16,int8"), tmp_path / "codec")
    assert not any(tmp_path.iterdir())
