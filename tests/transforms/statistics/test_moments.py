import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lathe.transforms import ArtifactError, InputError, Moments


def assert_same(one, other, relative=1e-10):
    assert one.count == other.count
    np.testing.assert_allclose(one.mean, other.mean, rtol=0, atol=relative * np.abs(other.mean).max())
    np.testing.assert_allclose(one.scatter, other.scatter, rtol=0, atol=relative * np.abs(other.scatter).max())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(2, 60),
    d=st.integers(1, 6),
    shards=st.integers(1, 8),
    offset=st.sampled_from([0.0, 1.0, 1e3]),
    block_rows=st.integers(1, 20),
)
def test_moments_of_shards_merged_in_any_order_equal_those_of_all_rows(seed, n, d, shards, offset, block_rows):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d)) + offset
    parts = [
        Moments.from_vectors(shard, block_rows)
        for shard in np.array_split(rng.permutation(rows), np.sort(rng.integers(0, n + 1, shards)))
    ]
    while len(parts) > 1:
        receiver, giver = rng.permutation(len(parts))[:2]
        parts[receiver].merge(parts[giver])
        del parts[giver]
    assert_same(parts[0], Moments.from_vectors(rows))


@pytest.mark.parametrize("ddof", [0, 1, 2])
def test_moments_mean_and_covariance_equal_numpys(ddof):
    rows = np.random.default_rng(0).normal(size=(500, 7)) @ np.random.default_rng(1).normal(size=(7, 7)) + 3
    moments = Moments.from_vectors(rows, block_rows=64)
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.covariance(ddof), np.cov(rows.T, ddof=ddof), rtol=1e-10, atol=1e-12)


def test_covariance_is_accurate_for_a_mean_ten_thousand_times_the_spread():
    # The textbook E[xxᵀ] − μμᵀ loses eight digits here.
    spread = np.random.default_rng(0).normal(size=(3000, 5)) * [1, 0.5, 2, 1, 1]
    rows = spread + 1e4
    true = np.cov((rows.astype(np.longdouble) - 10_000).T.astype(float))
    np.testing.assert_allclose(Moments.from_vectors(rows, block_rows=100).covariance(), true, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_moments_name_a_row_that_is_not_finite_in_a_later_block(value, dtype):
    rows = np.ones((50, 3), dtype)
    rows[37, 1] = value
    with pytest.raises(InputError, match="row 37 "):
        Moments.from_vectors(rows, block_rows=10)


def test_moments_name_the_first_row_of_opposite_infinities_without_a_warning():
    rows = np.ones((5, 3), np.float32)
    rows[2, 0], rows[4, 0] = np.inf, -np.inf
    with pytest.raises(InputError, match="row 2 "):
        Moments.from_vectors(rows)


def test_a_refused_batch_leaves_the_moments_unchanged():
    moments = Moments.from_vectors(np.arange(12.0).reshape(4, 3))
    before = (moments.count, moments.mean.copy(), moments.scatter.copy())
    for bad in (np.full((1, 3), np.nan), np.ones((2, 4))):
        with pytest.raises(InputError):
            moments.update(bad)
    assert moments.count == before[0]
    np.testing.assert_array_equal(moments.mean, before[1])
    np.testing.assert_array_equal(moments.scatter, before[2])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int16, np.bool_, ">f4"])
def test_moments_of_any_numeric_dtype_equal_those_of_the_float64_copy(dtype):
    rows = (np.random.default_rng(0).normal(size=(100, 4)) * 5).astype(dtype)
    assert_same(Moments.from_vectors(rows), Moments.from_vectors(rows.astype(np.float64)), relative=1e-13)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.bfloat16])
def test_moments_of_a_tensor_equal_those_of_its_array(dtype):
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(50, 4))).to(dtype)
    assert_same(Moments.from_vectors(rows), Moments.from_vectors(rows.double().numpy()), relative=1e-13)


def test_merging_with_empty_moments_or_adding_zero_rows_changes_nothing():
    rows = np.random.default_rng(0).normal(size=(20, 3))
    assert_same(Moments.from_vectors(rows).merge(Moments()), Moments.from_vectors(rows))
    assert_same(Moments().merge(Moments.from_vectors(rows)), Moments.from_vectors(rows))
    assert_same(Moments.from_vectors(rows).update(rows[:0]), Moments.from_vectors(rows))
    assert Moments().merge(Moments()).count == 0


def test_moments_of_one_row_have_a_zero_population_covariance_and_no_sample_covariance():
    moments = Moments.from_vectors(np.array([[1.0, 2.0, 3.0]]))
    np.testing.assert_array_equal(moments.mean, [1, 2, 3])
    np.testing.assert_array_equal(moments.covariance(ddof=0), np.zeros((3, 3)))
    with pytest.raises(InputError, match="more than 1 rows, got 1"):
        moments.covariance()


def test_covariance_of_empty_moments_is_refused():
    with pytest.raises(InputError, match="got 0"):
        Moments().covariance(ddof=0)


@pytest.mark.parametrize("shape", [(5,), (5, 0), (2, 3, 4)])
def test_moments_refuse_arrays_that_are_not_rows_of_vectors(shape):
    with pytest.raises(InputError, match="shape"):
        Moments.from_vectors(np.ones(shape))
    with pytest.raises(InputError, match="shape"):
        Moments().update(np.ones(shape))


@pytest.mark.parametrize(
    ("rows", "block_rows", "reason"),
    [
        (np.array([["a", "b"]]), 1, "numbers"),
        (np.array([[1j, 2]]), 1, "numbers"),
        (np.array([[None, 1]]), 1, "numbers"),
        ([[1.0, 2.0]], 1, "must be an array or a tensor"),
        ("abc", 1, "must be an array or a tensor"),
        (None, 1, "must be an array or a tensor"),
        (np.ones((4, 2)), 0, "block_rows must be a whole number from 1"),
        (np.ones((4, 2)), -1, "block_rows must be a whole number from 1"),
        (np.ones((4, 2)), 2.5, "block_rows must be a whole number from 1"),
    ],
)
def test_moments_refuse_rows_that_are_no_real_numbers_and_invalid_block_sizes(rows, block_rows, reason):
    with pytest.raises(InputError, match=reason):
        Moments.from_vectors(rows, block_rows)


def test_moments_of_different_dimensions_do_not_merge():
    with pytest.raises(InputError, match="4 dimensions into moments of 3"):
        Moments.from_vectors(np.ones((2, 3))).merge(Moments.from_vectors(np.ones((2, 4))))


def test_noise_floor_is_the_expected_mean_norm_of_rows_centred_at_zero():
    rng = np.random.default_rng(0)
    trials = [Moments.from_vectors(rng.normal(size=(200, 50))) for _ in range(50)]
    by_chance = np.sqrt(np.mean([moments.mean_norm() ** 2 for moments in trials]))
    assert np.mean([moments.noise_floor() for moments in trials]) == pytest.approx(by_chance, rel=0.1)


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


def test_float32_moments_correct_for_the_rounding_of_a_mean_far_above_the_deviations():
    rows = (np.random.default_rng(0).normal(size=(4000, 5)) * 1e-3 + 1e3).astype(np.float32)
    exact, fast = Moments.from_vectors(rows), Moments.from_vectors(rows, precision="float32")
    np.testing.assert_allclose(fast.covariance(), exact.covariance(), rtol=0, atol=1e-5 * exact.covariance().max())


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


def test_squared_norm_variance_of_moments_equals_that_of_the_rows():
    rows = np.random.default_rng(3).normal(0.3, 1, (700, 9)) * np.linspace(0.5, 2, 700)[:, None]
    moments = Moments.from_vectors(rows[:200]).merge(Moments.from_vectors(rows[200:]))
    assert moments.squared_norm_variance() == pytest.approx(np.square(rows).sum(1).var(), rel=1e-10)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert abs(Moments.from_vectors(unit).squared_norm_variance()) < 1e-14
