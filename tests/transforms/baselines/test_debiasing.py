import numpy as np
import pytest
import torch

from lathe.transforms import R1, R2, Chain, MeanCentering, Moments, Normalize, RandomDirection, StepError

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


def test_r1_ignores_row_lengths_in_fit_and_transform(rows, lengths):
    r1 = R1().fit(rows)
    np.testing.assert_allclose(R1().fit(rows * lengths).mean, r1.mean, atol=1e-7)
    np.testing.assert_allclose(r1.transform(rows * lengths), r1.transform(rows), atol=1e-6)


def test_r1_outputs_have_a_mean_of_zero_before_and_a_nonzero_mean_after_renormalising(rows):
    np.testing.assert_allclose(R1(renormalize=False).fit(rows).transform(rows).mean(0, dtype=np.float64), 0, atol=1e-7)
    assert np.linalg.norm(R1().fit(rows).transform(rows).mean(0)) > 1e-3


def test_r1_only_normalises_rows_whose_mean_is_zero(rows):
    opposites = np.stack([rows, -rows], axis=1).reshape(-1, WIDTH)
    np.testing.assert_allclose(R1().fit(opposites).transform(rows), unit(rows), atol=1e-6)


def test_r2_equals_r1_with_the_mean_direction_removed_and_then_renormalised(rows, fresh):
    """R1 is taken without its own renormalising."""
    direction = R2().fit(rows).direction.double().numpy()
    plain = R1(renormalize=False).fit(rows).transform(fresh).astype(np.float64)
    across = plain - (plain @ direction)[:, None] * direction
    np.testing.assert_allclose(unit(across), R2().fit(rows).transform(fresh), atol=1e-5)


def test_r1_and_mean_centering_of_9000_rows_in_several_blocks_equal_numpys_means(embeddings):
    rows = embeddings(9000, 4)
    np.testing.assert_allclose(R1().fit(rows).mean, unit(rows).mean(0), atol=1e-7)
    np.testing.assert_allclose(MeanCentering().fit(rows).mean, rows.mean(0, dtype=np.float64), atol=1e-7)


def test_mean_centering_subtracts_the_mean_of_the_unnormalised_rows(rows, lengths, fresh):
    scaled = rows * lengths
    mean = scaled.mean(0)
    centring = MeanCentering().fit(scaled)
    np.testing.assert_allclose(centring.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(centring.transform(fresh), fresh - mean, rtol=1e-5, atol=1e-5)


def test_normalize_then_mean_centering_equals_r1(rows, fresh):
    chain = Chain([Normalize(), MeanCentering()]).fit(rows)
    np.testing.assert_allclose(chain.transform(fresh), R1().fit(rows).transform(fresh), atol=1e-6)
    plain = Chain([Normalize(), MeanCentering()], normalize=False).fit(rows)
    np.testing.assert_allclose(plain.transform(fresh), R1(renormalize=False).fit(rows).transform(fresh), atol=1e-6)


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


def test_random_direction_depends_only_on_the_seed_and_the_dimensions(rows, fresh):
    first, same, other = (
        RandomDirection(seed).fit(data).direction for seed, data in ((1, rows), (1, fresh), (2, rows))
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.equal(RandomDirection(1).fit(Moments.from_vectors(rows)).direction, first)


def test_random_directions_of_many_seeds_are_isotropic(rows):
    directions = torch.stack([RandomDirection(seed).fit(rows).direction for seed in range(400)])
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1, atol=1e-6)
    assert directions.mean(0).norm() < 0.1
    np.testing.assert_allclose(np.cov(directions.T), np.eye(WIDTH) / WIDTH, atol=0.02)


@pytest.mark.parametrize("factor", [1e-15, -3.0, 1e15])
def test_a_row_parallel_to_the_random_direction_becomes_exactly_zero_folded_or_not(rows, factor):
    step = RandomDirection(5).fit(rows)
    row = (factor * step.direction.double().numpy())[None].astype(np.float32)
    assert not step.transform(row).any()
    assert not Chain([step]).fold().transform(row).any()


def test_random_direction_refuses_vectors_of_one_dimension():
    with pytest.raises(StepError, match="rand removes a direction: it needs vectors of at least 2 dimensions"):
        RandomDirection().fit(np.ones((4, 1)))
