import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from lathe.transforms import (
    PCA,
    R2,
    Chain,
    InputError,
    LowRankAffine,
    Moments,
    NotFittedError,
    PairedMoments,
    Procrustes,
    StepError,
)

WIDTH, OTHER = 16, 10
ALIGNMENTS = [Procrustes, LowRankAffine]


@pytest.fixture(scope="module")
def rows(embeddings):
    return embeddings(300, WIDTH)


@pytest.fixture(scope="module")
def targets(rows):
    """Return the same texts in another space: a noisy linear map of the rows with another mean."""
    rng = np.random.default_rng(3)
    return rows @ rng.normal(size=(WIDTH, OTHER)) + 0.3 * rng.normal(size=(len(rows), OTHER)) + rng.normal(size=OTHER)


@pytest.fixture(scope="module")
def rotation():
    return np.linalg.qr(np.random.default_rng(4).normal(size=(WIDTH, WIDTH)))[0]


def centred(rows):
    rows = np.asarray(rows, np.float64)
    return rows - rows.mean(0)


def reduced_rank(rows, targets, rank):
    """Return the coefficients `(d, k)` of the given rank with the smallest squared error."""
    x, y = centred(rows), centred(targets)
    coefficients = np.linalg.lstsq(x, y, rcond=None)[0]
    top = np.linalg.svd(x @ coefficients, full_matrices=False)[2][:rank]
    return coefficients @ top.T @ top


def test_procrustes_equals_scipys_orthogonal_procrustes(rows, rotation):
    """With `center=True` it equals scipy's result on centred rows and targets."""
    noisy = rows @ rotation + 0.1 * np.random.default_rng(5).normal(size=rows.shape)
    expected, _ = scipy.linalg.orthogonal_procrustes(rows.astype(np.float64), noisy)
    np.testing.assert_allclose(Procrustes().fit(rows, targets=noisy).weight.T, expected, atol=1e-6)
    expected, _ = scipy.linalg.orthogonal_procrustes(centred(rows), centred(noisy))
    np.testing.assert_allclose(Procrustes(center=True).fit(rows, targets=noisy).weight.T, expected, atol=1e-6)


def test_centred_procrustes_and_low_rank_affine_map_the_mean_of_the_vectors_to_that_of_the_targets(rows, targets):
    for step in (Procrustes(center=True), LowRankAffine(), LowRankAffine(3)):
        step.fit(rows, targets=targets)
        mean = step.transform(rows.mean(0, dtype=np.float64)[None])[0]
        np.testing.assert_allclose(mean, targets.mean(0), atol=1e-5)


def test_procrustes_inverse_is_exact_into_more_dimensions_and_approximate_into_fewer(rows, rotation):
    rng = np.random.default_rng(8)
    wide = rows @ np.linalg.qr(rng.normal(size=(24, WIDTH)))[0].T
    for center in (False, True):
        step = Procrustes(center).fit(rows, targets=wide)
        assert step.inverse_kind == "exact"
        np.testing.assert_allclose(step.inverse_transform(step.transform(rows)), rows, atol=1e-5)
        narrow = Procrustes(center).fit(rows, targets=(rows @ rotation)[:, :5])
        assert narrow.inverse_kind == "approximate"
        out = narrow.transform(rows)
        np.testing.assert_allclose(narrow.transform(narrow.inverse_transform(out)), out, atol=1e-5)


def test_low_rank_affine_without_ridge_and_rank_is_least_squares_with_an_intercept(rows, targets):
    design = np.concatenate([rows.astype(np.float64), np.ones((len(rows), 1))], axis=1)
    coefficients = np.linalg.lstsq(design, targets, rcond=None)[0]
    step = LowRankAffine(ridge=0).fit(rows, targets=targets)
    np.testing.assert_allclose(step.weight.T, coefficients[:-1], atol=1e-5)
    np.testing.assert_allclose(step.transform(rows), design @ coefficients, atol=1e-5)


@pytest.mark.parametrize("rank", [1, 3, OTHER])
def test_low_rank_affine_of_rank_r_is_the_reduced_rank_regression(rows, targets, rank):
    step = LowRankAffine(rank, ridge=0).fit(rows, targets=targets)
    expected = reduced_rank(rows, targets, rank)
    np.testing.assert_allclose(step.weight.T, expected, atol=1e-5)
    assert np.linalg.matrix_rank(step.weight.double().numpy(), tol=1e-4) == min(rank, OTHER)


@pytest.mark.parametrize("ridge", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize("rank", [None, 3])
def test_low_rank_affine_ridge_is_relative_to_the_mean_variance(rows, targets, ridge, rank):
    """The ridge equals least squares with extra rows √(n·ridge·tr(C)/d)·I whose targets are zero."""
    x, y = centred(rows), centred(targets)
    level = ridge * np.square(x).sum() / WIDTH  # n·ρ·tr(C)/d
    more = np.concatenate([x, np.sqrt(level) * np.eye(WIDTH)]), np.concatenate([y, np.zeros((WIDTH, OTHER))])
    coefficients = np.linalg.lstsq(*more, rcond=None)[0]
    if rank is not None:
        top = np.linalg.svd(more[0] @ coefficients, full_matrices=False)[2][:rank]
        coefficients = coefficients @ top.T @ top
    step = LowRankAffine(rank, ridge).fit(rows, targets=targets)
    np.testing.assert_allclose(step.weight.T, coefficients, atol=1e-5)


@pytest.mark.parametrize("rank", [1, 4])
def test_low_rank_affine_maps_its_approximate_inverse_to_the_same_outputs(rows, targets, rank):
    """The inverse is also less than a hundred times as large as the rows."""
    step = LowRankAffine(rank).fit(rows, targets=targets)
    assert step.inverse_kind == "approximate"
    out = step.transform(rows)
    back = step.inverse_transform(out)
    assert np.abs(back).max() < 100 * np.abs(rows).max()
    np.testing.assert_allclose(step.transform(back), out, atol=1e-4)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(cuts=st.lists(st.integers(0, 300), max_size=5), order=st.randoms(use_true_random=False), center=st.booleans())
def test_paired_moments_of_shards_merged_in_any_order_fit_like_all_pairs(rows, targets, cuts, order, center):
    parts = list(zip(np.split(rows, sorted(cuts)), np.split(targets, sorted(cuts)), strict=True))
    order.shuffle(parts)
    merged = PairedMoments(split=WIDTH)
    for part in parts:
        merged.merge(PairedMoments.from_pairs(*part))
    whole = PairedMoments.from_pairs(rows, targets)
    assert merged.count == whole.count
    for centered in (False, True):
        for found, expected in zip(merged.blocks(centered), whole.blocks(centered), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-12)
    for step in (Procrustes(center), LowRankAffine(3)):
        from_shards = step.fit(merged).weight
        np.testing.assert_allclose(from_shards, step.fit(rows, targets=targets).weight, atol=1e-5)


def test_paired_moments_of_other_source_dimensions_are_not_merged(rows, targets):
    moments = PairedMoments.from_pairs(rows, targets)
    with pytest.raises(InputError, match="cannot merge pairs from 10 dimensions into pairs from 16"):
        moments.merge(PairedMoments.from_pairs(targets, rows))
    assert moments.count == 300


def test_paired_moments_from_bytes_fit_the_same_procrustes(rows, targets):
    moments = PairedMoments.from_pairs(rows, targets)
    again = PairedMoments.from_bytes(moments.to_bytes())
    assert again.source_dimensions == WIDTH
    np.testing.assert_array_equal(Procrustes().fit(again).weight, Procrustes().fit(moments).weight)


@pytest.mark.parametrize("cls", ALIGNMENTS)
def test_alignment_refuses_vectors_without_targets(rows, cls):
    """This holds for arrays and moments, alone or in a chain, whose steps then stay unfitted."""
    for data in (rows, Moments.from_vectors(rows)):
        with pytest.raises(InputError, match=f"{cls.kind} is fitted on pairs: give vectors and the targets"):
            cls().fit(data)
    with pytest.raises(InputError, match=f"{cls.kind} is fitted on pairs"):
        cls().fit(Moments.from_vectors(rows), targets=rows)
    for steps in ([cls()], [R2(), cls(), PCA(4)]):
        with pytest.raises(InputError, match=f"{cls.kind} is fitted on pairs: give targets"):
            Chain(steps).fit(rows)
        assert not any(step.fitted for step in steps)


@pytest.mark.parametrize("cls", ALIGNMENTS)
def test_alignment_refuses_vectors_and_targets_of_different_counts(rows, targets, cls):
    for fit in (cls().fit, Chain([cls()]).fit, Chain([R2(), cls()]).fit):
        with pytest.raises(InputError, match="300 vectors and 299 targets are not pairs"):
            fit(rows, targets=targets[1:])


def test_low_rank_affine_without_ridge_refuses_a_constant_column(rows, targets):
    """With the default ridge a constant column is fitted, but identical rows are refused."""
    flat = rows.copy()
    flat[:, 5] = 0.5
    with pytest.raises(InputError, match="in all 16 directions, these 300 rows do not: set a ridge above 0"):
        LowRankAffine(ridge=0).fit(flat, targets=targets)
    assert np.isfinite(LowRankAffine().fit(flat, targets=targets).transform(rows)).all()
    with pytest.raises(InputError, match="vectors that differ"):
        LowRankAffine().fit(np.repeat(rows[:1], 300, axis=0), targets=targets)


@pytest.mark.parametrize("cls", ALIGNMENTS)
def test_alignment_in_a_chain_is_fitted_on_the_outputs_of_the_steps_before(rows, targets, cls):
    chain = Chain([R2(), PCA(12), cls()], normalize=False).fit(rows, targets=targets)
    before = Chain([R2(), PCA(12)], normalize=False).fit(rows).transform(rows)
    alone = cls().fit(before, targets=targets)
    np.testing.assert_allclose(chain.transform(rows), alone.transform(before), atol=1e-5)
    assert (chain.input_dimensions, chain.output_dimensions) == (WIDTH, OTHER)


@pytest.mark.parametrize("cls", ALIGNMENTS)
def test_steps_after_an_alignment_are_fitted_on_the_aligned_vectors(rows, targets, cls):
    chain = Chain([cls(), PCA(4)], normalize=False).fit(rows, targets=targets)
    aligned = cls().fit(rows, targets=targets).transform(rows)
    np.testing.assert_allclose(chain.transform(rows), PCA(4).fit(aligned).transform(aligned), atol=1e-4)
    np.testing.assert_allclose(chain.fold().transform(rows), chain.transform(rows), atol=1e-5)


@pytest.mark.parametrize("cls", ALIGNMENTS)
def test_alignment_output_dimensions_are_known_only_after_the_fit(rows, targets, cls):
    with pytest.raises(NotFittedError, match="dimensions of the targets"):
        Chain([R2(), cls()]).dimensions_after(WIDTH)
    assert Chain([cls().fit(rows, targets=targets)]).dimensions_after(WIDTH) == OTHER


def test_chain_refuses_steps_that_the_target_dimensions_rule_out_before_fitting_any_step(rows, targets):
    chain = Chain([R2(), Procrustes(), PCA(OTHER + 1)])
    with pytest.raises(StepError, match="pca to 11 needs vectors of at least 11 dimensions, not 10"):
        chain.fit(rows, targets=targets)
    assert not any(step.fitted for step in chain.transforms)
