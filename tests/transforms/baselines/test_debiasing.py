import numpy as np
import pytest

from lathe.transforms import R1, R2, Chain, MeanCentering, RandomDirection, StepError

WIDTH = 24


@pytest.fixture(scope="module")
def rows(embeddings):
    return embeddings(400, WIDTH)


@pytest.fixture(scope="module")
def fresh(embeddings):
    return embeddings(60, WIDTH, seed=1)


@pytest.fixture(scope="module")
def lengths():
    return 10 ** np.random.default_rng(0).uniform(-3, 3, size=(400, 1))


def unit(rows):
    rows = np.asarray(rows, np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_r1_matches_the_papers_formula_with_and_without_renormalising(rows, fresh):
    expected = unit(fresh) - unit(rows).mean(0)
    np.testing.assert_allclose(R1().fit(rows).transform(fresh), unit(expected), atol=1e-6)
    np.testing.assert_allclose(R1(renormalize=False).fit(rows).transform(fresh), expected, atol=1e-6)


def test_r1_mean_norm_and_noise_floor_are_those_of_unit_rows_and_equal_r2s(rows):
    r1, r2 = R1().fit(rows), R2().fit(rows)
    assert float(r1.mean_norm) == pytest.approx(np.linalg.norm(unit(rows).mean(0)), rel=1e-6)
    assert float(r1.noise_floor) == pytest.approx(np.sqrt(unit(rows).var(0).sum() / len(rows)), rel=1e-5)
    assert float(r1.mean_norm) == pytest.approx(float(r2.mean_norm), rel=1e-6)
    assert float(r1.noise_floor) == float(r2.noise_floor)


def test_mean_centering_subtracts_the_mean_of_the_unnormalised_rows(rows, lengths, fresh):
    scaled = rows * lengths
    mean = scaled.mean(0)
    centring = MeanCentering().fit(scaled)
    np.testing.assert_allclose(centring.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(centring.transform(fresh), fresh - mean, rtol=1e-5, atol=1e-5)


def test_random_direction_is_a_normalised_standard_normal_draw_of_numpy_with_its_seed(rows):
    for seed in (0, 7):
        drawn = np.random.default_rng(seed).standard_normal(WIDTH)
        direction = RandomDirection(seed).fit(rows).direction
        np.testing.assert_allclose(direction, drawn / np.linalg.norm(drawn), atol=1e-7)


def test_random_direction_is_projected_off_and_the_rows_are_renormalised(rows, fresh):
    step = RandomDirection(5).fit(rows)
    direction = step.direction.double().numpy()
    expected = unit(fresh - (fresh @ direction)[:, None] * direction)
    np.testing.assert_allclose(step.transform(fresh), expected, atol=1e-6)
    np.testing.assert_allclose(step.transform(fresh) @ direction, 0, atol=1e-6)


@pytest.mark.parametrize("factor", [1e-15, -3.0, 1e15])
def test_a_row_parallel_to_the_random_direction_becomes_exactly_zero_folded_or_not(rows, factor):
    step = RandomDirection(5).fit(rows)
    row = (factor * step.direction.double().numpy())[None].astype(np.float32)
    assert not step.transform(row).any()
    assert not Chain([step]).fold().transform(row).any()


def test_random_direction_refuses_vectors_of_one_dimension():
    with pytest.raises(StepError, match="rand removes a direction: it needs vectors of at least 2 dimensions"):
        RandomDirection().fit(np.ones((4, 1)))
