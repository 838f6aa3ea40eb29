import contextlib
import re

import faiss
import numpy as np
import pytest

from lathe.training.errors import ExportError
from lathe.training.export.faiss_transforms import export_faiss
from lathe.transforms import Chain, parse_steps

CHAINS = {
    "nested": ("r2,geopres:64,nested=true,steps=5", True),
    "whitened": ("whitening:32", True),
    "truncated": ("truncation:64", True),
    "chosen columns of any length": ("random_selection:64", False),
    "two products": ("r2,geopres:20,steps=5", False),
    "normalised between": ("mc,normalize,pca:48", True),
}


@pytest.fixture(scope="module", params=CHAINS)
def export(request, fitted, tmp_path_factory):
    chain = fitted(*CHAINS[request.param])
    return chain, export_faiss(chain, tmp_path_factory.mktemp("indexes") / "index", f"{request.param}@1")


def transforms_in(folder):
    """Read the transforms of a folder in their order."""
    return [faiss.read_VectorTransform(str(path)) for path in sorted(folder.glob("*.vt"), key=lambda p: int(p.stem))]


def test_exported_transforms_are_numbered_and_an_index_behind_them_holds_the_chains_vectors(
    export, vectors, new_vectors
):
    chain, exported = export
    found = transforms_in(exported.folder)
    assert sorted(path.stem for path in exported.folder.glob("*.vt")) == [str(n) for n in range(len(found))]
    assert all(transform.is_trained for transform in found)
    assert exported.files == sorted(path.name for path in exported.folder.iterdir())
    assert {"0.vt", "README.md", "chain.index", "lathe.json"} <= set(exported.files)
    assert 0 <= exported.difference <= 1e-4
    index = faiss.IndexPreTransform(faiss.IndexFlatIP(chain.output_dimensions))
    for transform in reversed(found):
        index.prepend_transform(transform)
    rows = np.concatenate([vectors[:100], new_vectors])
    index.add(rows)
    np.testing.assert_allclose(index.index.reconstruct_n(0, len(rows)), chain.transform(rows), atol=1e-4)


def test_the_code_of_the_faiss_exports_readme_runs(export, vectors, new_vectors):
    chain, exported = export
    plain, own = re.findall(r"```python\n(.*?)\n```", (exported.folder / "README.md").read_text(), re.DOTALL)
    *lines, search = plain.splitlines()
    names = {"vectors": vectors, "queries": new_vectors}
    with contextlib.chdir(exported.folder):
        exec("\n".join(lines), names)
        scores, _ = eval(search, names)
        exec(own, names)
    assert scores.shape == (len(new_vectors), 10)
    index = names["index"]
    index.add(vectors)
    np.testing.assert_allclose(index.index.reconstruct_n(0, len(vectors)), chain.transform(vectors), atol=1e-4)


@pytest.mark.parametrize("kind", ["int8", "binary"])
@pytest.mark.parametrize("rest", ["pca:13,{}", "{}"])
def test_faiss_index_of_int8_and_binary_stores_the_codes_and_compares_float_queries(
    fitted, tmp_path, vectors, new_vectors, kind, rest
):
    chain = fitted(rest.format(kind))
    export_faiss(chain, tmp_path / "index", "codes@1")
    index = faiss.read_index(str(tmp_path / "index/chain.index"))
    index.add(vectors)
    stored = index.sa_encode(vectors)
    codes = (stored ^ np.uint8(128)).view(np.int8) if kind == "int8" else stored
    assert index.index.sa_code_size() == chain.bytes_per_vector
    assert (codes == chain.transform(vectors)).mean() > 0.98  # the sign of an entry such as 1e-39 is left to rounding
    scores, ids = index.search(new_vectors, 10)
    ours = chain.transform_queries(new_vectors) @ chain.dequantize(codes).T
    np.testing.assert_allclose(scores, -np.sort(-ours, axis=1)[:, :10], atol=1e-4)
    np.testing.assert_allclose(np.take_along_axis(ours, ids, axis=1), scores, atol=1e-4)


def test_export_faiss_refuses_a_chain_without_fixed_dimensions(tmp_path, vectors):
    chain = Chain(parse_steps("normalize")).fit(vectors)
    with pytest.raises(ExportError):
        export_faiss(chain, tmp_path / "index", "unit@1")
    assert not any(tmp_path.iterdir())
