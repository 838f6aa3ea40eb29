import contextlib
import re

import faiss
import numpy as np
import pytest

from training.errors import ExportError
from training.export.faiss_transforms import export_faiss
from transforms import Chain, parse_steps

CHAINS = {
    "nested": ("r2,geopres:64,nested=true,steps=5", True),
    "centred": ("pca:48", True),
    "whitened": ("whitening:32", True),
    "truncated": ("truncation:64", True),
    "debiased and truncated": ("r2,truncation:64", True),
    "chosen columns": ("random_selection:64", True),
    "chosen columns of any length": ("random_selection:64", False),
    "debiased": ("r2", True),
    "any length": ("pca:48", False),
    "two products": ("r2,geopres:20,steps=5", False),
    "normalised between": ("mc,normalize,pca:48", True),
}


@pytest.fixture(scope="module", params=CHAINS)
def export(request, fitted, tmp_path_factory):
    chain = fitted(*CHAINS[request.param])
    return chain, export_faiss(chain, tmp_path_factory.mktemp("indexes") / "index", f"{request.param}@1")


def transforms_in(folder):
    return [faiss.read_VectorTransform(str(path)) for path in sorted(folder.glob("*.vt"), key=lambda p: int(p.stem))]


def behind(folder, index):
    """The index behind the folder's transforms."""
    whole = faiss.IndexPreTransform(index)
    for transform in reversed(transforms_in(folder)):
        whole.prepend_transform(transform)
    return whole


def test_an_index_behind_the_transforms_holds_what_the_chain_gives(export, vectors, new_vectors):
    chain, exported = export
    rows = np.concatenate([vectors[:100], new_vectors])
    index = behind(exported.folder, faiss.IndexFlatIP(chain.output_dimensions))
    index.add(rows)
    np.testing.assert_allclose(index.index.reconstruct_n(0, len(rows)), chain.transform(rows), atol=1e-4)


def test_transforms_are_numbered_in_their_order_and_fit_one_another(export):
    chain, exported = export
    found = transforms_in(exported.folder)
    assert sorted(path.stem for path in exported.folder.glob("*.vt")) == [str(n) for n in range(len(found))]
    assert found[0].d_in == 384 and found[-1].d_out == chain.output_dimensions
    assert all(before.d_out == after.d_in for before, after in zip(found, found[1:], strict=False))
    assert all(transform.is_trained for transform in found)


def test_the_index_is_empty_and_takes_vectors_as_the_encoder_gives_them(export):
    chain, exported = export
    index = faiss.read_index(str(exported.folder / "chain.index"))
    assert (index.ntotal, index.d, index.is_trained) == (0, 384, True)
    assert index.metric_type == faiss.METRIC_INNER_PRODUCT
    assert faiss.downcast_index(index.index).d == chain.output_dimensions


def test_a_search_finds_the_neighbours_that_the_chain_finds(export, vectors, new_vectors):
    chain, exported = export
    index = faiss.read_index(str(exported.folder / "chain.index"))
    index.add(vectors)
    scores, ids = index.search(new_vectors, 10)
    ours = chain.transform(new_vectors) @ chain.transform(vectors).T
    np.testing.assert_allclose(scores, -np.sort(-ours, axis=1)[:, :10], atol=1e-4)
    np.testing.assert_allclose(np.take_along_axis(ours, ids, axis=1), scores, atol=1e-4)
    best = np.argsort(-ours, axis=1)
    distinct = ours[np.arange(len(ours)), best[:, 0]] - ours[np.arange(len(ours)), best[:, 1]] > 1e-3
    assert distinct.any()
    np.testing.assert_array_equal(ids[distinct, 0], best[distinct, 0])


def test_one_vector_is_searched_as_many_are(export, vectors, new_vectors):
    _, exported = export
    index = faiss.read_index(str(exported.folder / "chain.index"))
    index.add(vectors)
    together, _ = index.search(new_vectors, 3)
    alone, _ = index.search(new_vectors[:1], 3)
    np.testing.assert_allclose(alone, together[:1], atol=1e-5)


def test_what_is_said_to_be_written_is_what_is_there(export):
    _, exported = export
    assert exported.files == sorted(path.name for path in exported.folder.iterdir())
    assert {"0.vt", "README.md", "chain.index", "lathe.json"} <= set(exported.files)
    assert 0 <= exported.difference <= 1e-4


def test_the_readme_works_as_written(export, vectors, new_vectors):
    chain, exported = export
    (code,) = re.findall(r"```python\n(.*?)\n```", (exported.folder / "README.md").read_text(), re.DOTALL)
    plain, hnsw = code.split("hnsw = ")
    *lines, search = plain.strip().splitlines()
    names = {"vectors": vectors, "queries": new_vectors}
    with contextlib.chdir(exported.folder):
        exec("\n".join(lines), names)
        scores, _ = eval(search, names)
        exec("hnsw = " + hnsw, names)
    assert scores.shape == (len(new_vectors), 10)
    index = names["index"]
    index.add(vectors)
    np.testing.assert_allclose(index.index.reconstruct_n(0, len(vectors)), chain.transform(vectors), atol=1e-4)


@pytest.mark.parametrize("kind", ["int8", "binary"])
def test_a_chain_that_quantises_is_refused_with_what_to_do_instead(fitted, tmp_path, kind):
    chain = fitted(f"pca:16,{kind}")
    with pytest.raises(ExportError, match=f"{kind}.*without that step.*let the index quantise"):
        export_faiss(chain, tmp_path / "index", "codes@1")
    assert not any(tmp_path.iterdir())
    assert export_faiss(chain[:-1], tmp_path / "index", "floats@1").files


def test_a_chain_of_no_width_is_refused_in_words(tmp_path, vectors):
    chain = Chain(parse_steps("normalize")).fit(vectors)
    with pytest.raises(ExportError):
        export_faiss(chain, tmp_path / "index", "unit@1")
    assert not any(tmp_path.iterdir())
