import copy
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lathe.transforms import PCA, R2, ArtifactError, Chain, GeoPres, InputError, Normalize, StepError, TransformError


@pytest.fixture(scope="module")
def rows(embeddings):
    return embeddings(250, 24)


@pytest.fixture(scope="module")
def compact(rows):
    return Chain([R2(), GeoPres(12, nested=True, steps=5)]).fit(rows)


class Recorder:
    """Vectors that record how many rows each read asks for."""

    def __init__(self, vectors):
        self.vectors = vectors
        self.shape = vectors.shape
        self.asked = []

    def __getitem__(self, rows):
        block = self.vectors[rows]
        self.asked.append(len(block))
        return block


def make(kinds):
    """Return unfitted steps of these kinds. Each geopres halves the dimensions again."""
    sizes = itertools.count(1)
    return [
        {"r2": R2, "normalize": Normalize, "geopres": lambda: GeoPres(24 >> next(sizes), nested=True, steps=2)}[kind]()
        for kind in kinds
    ]


ORDERS = st.lists(st.sampled_from(["normalize", "r2", "geopres"]), min_size=1, max_size=5).filter(
    lambda kinds: kinds.count("geopres") <= 2
)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(kinds=ORDERS, normalize=st.booleans(), exponent=st.integers(-6, 6), seed=st.integers(0, 1000))
def test_folded_chain_equals_the_chain_at_every_size_it_serves(rows, embeddings, kinds, normalize, exponent, seed):
    chain = Chain(make(kinds), normalize).fit(rows)
    # Without a normalisation long rows would need a tolerance of their own.
    lengths = np.float32(10.0**exponent if normalize else 1)
    fresh = embeddings(20, 24, seed=seed) * lengths
    whole = chain.transform(fresh)
    np.testing.assert_allclose(chain.fold().transform(fresh), whole, atol=1e-5)
    if chain.nested:
        width = whole.shape[1]
        for size in {1, 2, width // 2, width}:
            cut = chain.transform(fresh, dimensions=size)
            assert cut.shape == (20, size)
            # Normalising a prefix that holds next to nothing of its row magnifies rounding.
            kept = np.linalg.norm(whole[:, :size], axis=1) > 0.05 * np.linalg.norm(whole, axis=1)
            np.testing.assert_allclose(chain.fold(size).transform(fresh)[kept], cut[kept], atol=1e-5)


@pytest.mark.parametrize(
    ("kinds", "normalize", "expected"),
    [
        (["r2"], True, ["projection"]),
        (["r2", "geopres"], True, ["affine"]),
        (["normalize", "r2", "r2", "geopres", "normalize"], True, ["affine"]),
        (["r2", "geopres"], False, ["projection", "affine"]),
        (["geopres", "r2"], False, ["affine"]),
        (["normalize"], True, ["normalize"]),
    ],
)
def test_fold_merges_affine_steps_and_drops_redundant_normalisations(rows, kinds, normalize, expected):
    folded = Chain(make(kinds), normalize).fit(rows).fold()
    assert [step.kind for step in folded.transforms] == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_chain_on_a_gpu_folds_to_a_chain_on_that_gpu(rows, compact):
    on_gpu = copy.deepcopy(compact).cuda()
    for folded, size in ((on_gpu.fold(), 12), (on_gpu.fold(5), 5)):
        assert all(buffer.is_cuda for buffer in folded.buffers())
        out = folded.transform(torch.from_numpy(rows).cuda())
        assert out.is_cuda
        np.testing.assert_allclose(out.cpu(), compact.transform(rows, dimensions=size), atol=1e-5)


def test_fold_can_override_the_final_normalisation(rows, compact):
    plain = Chain(compact.transforms, normalize=False)
    np.testing.assert_allclose(compact.fold(normalize=False).transform(rows), plain.transform(rows), atol=1e-5)
    np.testing.assert_allclose(plain.fold(normalize=True).transform(rows), compact.transform(rows), atol=1e-5)


def test_folded_chain_knows_its_dimensions_and_is_float32(compact):
    folded = compact.fold(4)
    assert (folded.input_dimensions, folded.output_dimensions) == (24, 4)
    assert next(folded.buffers()).dtype == torch.float32


def test_each_step_of_a_chain_is_fitted_on_the_outputs_of_the_steps_before(rows, compact):
    r2 = R2().fit(rows)
    geopres = GeoPres(12, nested=True, steps=5).fit(r2.transform(rows))
    np.testing.assert_allclose(compact.transforms[0].direction, r2.direction, atol=1e-7)
    np.testing.assert_allclose(compact.transforms[1].weight, geopres.weight, atol=1e-6)


def test_saving_a_refitted_loaded_chain_writes_the_new_fit_and_the_loaded_metadata(rows, embeddings, compact, tmp_path):
    compact.save(tmp_path / "one", {"encoder": "e"})
    again = Chain.load(tmp_path / "one").fit(embeddings(100, 30))
    again.save(tmp_path / "two")
    loaded = Chain.load(tmp_path / "two")
    assert loaded.metadata["encoder"] == "e"
    assert loaded.input_dimensions == 30
    np.testing.assert_array_equal(loaded.transform(np.eye(30)), again.transform(np.eye(30)))


def test_unfitted_and_folded_chains_cannot_be_saved(compact, tmp_path):
    for chain in (Chain([R2()]), compact.fold()):
        with pytest.raises(TransformError):
            chain.save(tmp_path / "chain")
    assert not list(tmp_path.iterdir())


def test_chain_refuses_steps_of_incompatible_dimensions_before_reading_a_row(rows):
    with pytest.raises(StepError, match="more than 12 dimensions, not 12"):
        Chain([R2(), GeoPres(12), Normalize(), GeoPres(12)])
    vectors = Recorder(rows)
    chain = Chain([R2(), GeoPres(24)])
    with pytest.raises(StepError, match="more than 24 dimensions, not 24"):
        chain.fit(vectors)
    assert vectors.asked == []
    assert not any(step.fitted for step in chain.transforms)


def test_chain_fit_reads_vectors_in_blocks_of_at_most_4096_rows(embeddings):
    vectors = Recorder(embeddings(10_000, 6))
    Chain([Normalize(), R2(), GeoPres(3, steps=3, batch=500)]).fit(vectors)
    assert max(vectors.asked) <= 4096
    assert sum(vectors.asked) >= 20_000, "r2 and geopres both want every row"


def test_chain_in_place_of_a_scikit_learn_transformer_says_which_to_take(rows):
    labels = np.arange(len(rows)) % 2
    for call in (Chain([R2()]).fit, Chain([R2()]).fit_transform):
        with pytest.raises(TypeError, match="ChainTransformer"):
            call(rows, labels)
    chain = Chain([R2(), PCA(4)])
    np.testing.assert_array_equal(chain.fit_transform(rows), chain.transform(rows))


def test_repr_of_a_chain_is_one_line_with_the_parameters_that_were_chosen(rows):
    assert repr(Chain([R2(), GeoPres(4, nested=True)], normalize=False)) == (
        "Chain(R2(not fitted), GeoPres(dimensions=4, nested=True, not fitted), normalize=False)"
    )
    assert repr(Chain([PCA(4)]).fit(rows)) == "Chain(PCA(dimensions=4))"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_transform_refuses_vectors_that_are_not_finite(compact, rows, value):
    bad = rows[:3].copy()
    bad[1, 2] = value
    for apply in (compact.transform, compact.transform_queries, compact[:1].transform):
        with pytest.raises(InputError, match="NaN or inf"):
            apply(bad)


@pytest.mark.parametrize("size", [0, -1, 13, 24])
def test_nested_chain_refuses_sizes_outside_1_to_its_output_dimensions(rows, compact, size):
    assert not compact.serves(size)
    with pytest.raises(InputError, match=f"any number up to 12 dimensions, not {size}"):
        compact.transform(rows, dimensions=size)
    with pytest.raises(InputError, match=f"any number up to 12 dimensions, not {size}"):
        compact.fold(size)


@pytest.mark.parametrize("steps", [[R2()], [GeoPres(12, steps=1)], [GeoPres(12, nested=True, steps=1), R2()]])
def test_chain_that_is_not_nested_serves_only_its_output_dimensions(rows, steps):
    chain = Chain(steps).fit(rows)
    full = chain.output_dimensions
    assert chain.serves(full)
    np.testing.assert_array_equal(chain.transform(rows, dimensions=full), chain.transform(rows))
    with pytest.raises(InputError, match=f"only {full} dimensions, not 6"):
        chain.transform(rows, dimensions=6)


def test_chain_outputs_have_norm_one_at_every_size_unless_normalize_is_false(rows, compact):
    for size in (1, 5, 12):
        norms = np.linalg.norm(compact.transform(rows, dimensions=size).astype(np.float64), axis=1)
        np.testing.assert_allclose(norms, 1, atol=1e-6)
    plain = Chain(compact.transforms, normalize=False).transform(rows)
    assert np.abs(np.linalg.norm(plain, axis=1) - 1).max() > 0.01


def test_chain_fit_reports_progress_that_rises_from_0_to_1(rows):
    seen = []
    Chain([R2(), GeoPres(4, steps=3), Normalize()]).fit(
        rows, on_progress=lambda fraction, message: seen.append(fraction)
    )
    assert seen == sorted(seen)
    assert seen[0] == 0
    assert seen[-1] == 1
    assert seen.count(1) == 1


def test_save_merges_given_metadata_over_the_metadata_of_the_chain(compact, tmp_path):
    chain = Chain(compact.transforms)
    chain.metadata = {"encoder": "old", "certificate": {"n_fit": 3}}
    written = chain.save(tmp_path / "chain", {"encoder": "new"})
    loaded = Chain.load(tmp_path / "chain")
    assert loaded.metadata == written
    assert loaded.metadata["encoder"] == "new"
    assert loaded.metadata["certificate"] == {"n_fit": 3}


@pytest.mark.parametrize("name", ["steps", "normalize", "input_dimensions", "schema_version", "tensors_sha256"])
def test_metadata_cannot_override_manifest_keys_that_define_the_chain(rows, compact, tmp_path, name):
    """Such metadata is either refused or ignored."""
    try:
        compact.save(tmp_path / "chain", {name: 7})
    except ArtifactError:
        return
    np.testing.assert_array_equal(Chain.load(tmp_path / "chain").transform(rows), compact.transform(rows))


def test_the_first_step_of_a_chain_is_fitted_in_the_precision_of_float64_vectors():
    rows = np.random.default_rng(0).normal(size=(500, 6)) * 1e-5 + 1
    expected = PCA(3).fit(rows)
    assert Chain([PCA(3)]).fit(rows)[0].weight.equal(expected.weight)
    assert not PCA(3).fit(rows.astype(np.float32)).weight.equal(expected.weight)


def test_a_failed_chain_fit_leaves_every_step_unchanged(rows):
    chain = Chain([R2(), PCA(8)]).fit(rows)
    before = copy.deepcopy(chain)
    with pytest.raises(InputError, match="pca needs 8 directions"):
        chain.fit(np.vstack([rows[:4]] * 10))
    assert chain == before


def test_fit_with_refit_false_fits_only_the_unfitted_steps(rows, embeddings):
    chain = Chain([R2(), PCA(8)]).fit(rows)
    before = copy.deepcopy(chain)
    longer = (chain + GeoPres(4, steps=1)).fit(embeddings(200, 24, seed=9), refit=False)
    assert chain == before == longer[:2]
    assert longer.fitted
