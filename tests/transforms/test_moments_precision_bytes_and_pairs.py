import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lathe.transforms import ArtifactError, InputError, Moments, PairedMoments


def direct(rows):
    """Return third and fourth moments of rows, computed directly from the centred rows."""
    y = rows - rows.mean(0)
    squares = (y**2).sum(1)
    return (squares[:, None] * y).sum(0), (squares**2).sum()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(2, 60),
    d=st.integers(1, 6),
    shards=st.integers(1, 6),
    offset=st.sampled_from([0.0, 1.0, 100.0]),
)
def test_third_and_fourth_moments_of_merged_shards_equal_those_of_all_rows(seed, n, d, shards, offset):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d)) * rng.uniform(0.1, 3, d) + offset
    moments = Moments()
    for shard in np.array_split(rng.permutation(rows), np.sort(rng.integers(0, n + 1, shards))):
        moments.merge(Moments.from_vectors(shard))
    third, fourth = direct(rows)
    np.testing.assert_allclose(moments.fourth, fourth, rtol=1e-8)
    np.testing.assert_allclose(moments.third, third, atol=1e-8 * fourth ** (3 / 4) * n)


@pytest.mark.parametrize("offset", [0, 1, 1e4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_float32_moments_have_the_exact_mean_and_a_covariance_within_1e_5(offset, dtype):
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(9000, 24)) @ rng.normal(size=(24, 24)) + offset).astype(dtype)
    exact = Moments.from_vectors(rows.astype(np.float64))
    fast = Moments.from_vectors(rows, precision="float32")
    np.testing.assert_allclose(fast.mean, exact.mean, rtol=1e-12)
    scale = np.sqrt(np.outer(np.diag(exact.covariance()), np.diag(exact.covariance())))
    assert (np.abs(fast.covariance() - exact.covariance()) / scale).max() < 1e-5


def test_float32_moments_merge_with_float64_moments():
    rows = np.random.default_rng(0).normal(size=(400, 5)).astype(np.float32)
    both = Moments.from_vectors(rows[:200]).merge(Moments.from_vectors(rows[200:], precision="float32"))
    np.testing.assert_allclose(both.covariance(), Moments.from_vectors(rows).covariance(), atol=1e-5)


def test_moments_refuse_a_precision_other_than_float64_or_float32():
    with pytest.raises(InputError, match="float64 or float32"):
        Moments("float16")


def test_moments_of_float32_rows_whose_sum_overflows_are_finite():
    rows = np.full((4, 2), 3e38, np.float32)
    assert Moments.from_vectors(rows).mean == pytest.approx(rows[0].astype(float))


def test_moments_from_bytes_are_bit_equal_and_can_be_merged():
    moments = Moments.from_vectors(np.random.default_rng(0).normal(size=(50, 4)))
    back = Moments.from_bytes(moments.to_bytes())
    assert (back.count, back.fourth) == (moments.count, moments.fourth)
    for name in ("mean", "scatter", "third"):
        np.testing.assert_array_equal(getattr(back, name), getattr(moments, name))
    np.testing.assert_allclose(back.merge(moments).count, 100)


@pytest.mark.parametrize("payload", [b"", b"no moments", Moments().to_bytes()[:20]])
def test_moments_from_bytes_refuses_bytes_that_are_not_saved_moments(payload):
    with pytest.raises(ArtifactError, match="not saved moments"):
        Moments.from_bytes(payload)


def test_paired_moments_of_merged_shards_equal_those_of_all_pairs_and_numpys():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 4)), rng.normal(size=(90, 3))
    whole = PairedMoments.from_pairs(x, y)
    parts = [PairedMoments.from_pairs(x[part], y[part]) for part in (slice(0, 10), slice(10, 55), slice(55, 90))]
    merged = PairedMoments(split=4).merge(parts[2]).merge(parts[0]).merge(parts[1])
    for centered in (True, False):
        for one, other in zip(merged.blocks(centered), whole.blocks(centered), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-12)
    own, cross = whole.blocks(centered=True)
    np.testing.assert_allclose(cross, (x - x.mean(0)).T @ (y - y.mean(0)) / 90, atol=1e-12)
    np.testing.assert_allclose(own, np.cov(x.T, ddof=0), atol=1e-12)
    np.testing.assert_allclose(whole.target_mean(), y.mean(0))


def test_paired_moments_refuse_other_counts_rows_that_are_not_finite_and_other_splits():
    with pytest.raises(InputError, match="5 vectors and 4 targets are not pairs"):
        PairedMoments.from_pairs(np.ones((5, 2)), np.ones((4, 2)))
    with pytest.raises(InputError, match="row 1 "):
        PairedMoments.from_pairs(np.ones((3, 2)), np.array([[1.0], [np.nan], [1.0]]))
    with pytest.raises(InputError, match="from 3 dimensions into pairs from 2"):
        PairedMoments(split=2).merge(PairedMoments.from_pairs(np.ones((3, 3)), np.ones((3, 2))))


def test_squared_norm_variance_of_moments_equals_that_of_the_rows():
    rows = np.random.default_rng(3).normal(0.3, 1, (700, 9)) * np.linspace(0.5, 2, 700)[:, None]
    moments = Moments.from_vectors(rows[:200]).merge(Moments.from_vectors(rows[200:]))
    assert moments.squared_norm_variance() == pytest.approx(np.square(rows).sum(1).var(), rel=1e-10)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert abs(Moments.from_vectors(unit).squared_norm_variance()) < 1e-14
