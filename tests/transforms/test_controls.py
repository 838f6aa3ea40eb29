import numpy as np
import pytest
import torch

from transforms import R1, R2, Chain, InputError, MeanCentering, Moments, Normalize, RandomDirection, StepError

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


def test_r1_is_the_formula_of_the_paper(rows, fresh):
    expected = unit(fresh) - unit(rows).mean(0)
    np.testing.assert_allclose(R1().fit(rows).transform(fresh), unit(expected), atol=1e-6)
    np.testing.assert_allclose(R1(renormalize=False).fit(rows).transform(fresh), expected, atol=1e-6)


def test_r1_knows_the_length_of_the_mean_of_unit_rows_and_its_noise_floor(rows):
    r1, r2 = R1().fit(rows), R2().fit(rows)
    assert float(r1.mean_norm) == pytest.approx(np.linalg.norm(unit(rows).mean(0)), rel=1e-6)
    assert float(r1.noise_floor) == pytest.approx(np.sqrt(unit(rows).var(0).sum() / len(rows)), rel=1e-5)
    assert float(r1.mean_norm) == pytest.approx(float(r2.mean_norm), rel=1e-6)
    assert float(r1.noise_floor) == float(r2.noise_floor)


def test_the_length_of_a_row_matters_neither_to_the_fit_nor_to_the_output_of_r1(rows, lengths):
    r1 = R1().fit(rows)
    np.testing.assert_allclose(R1().fit(rows * lengths).mean, r1.mean, atol=1e-7)
    np.testing.assert_allclose(r1.transform(rows * lengths), r1.transform(rows), atol=1e-6)


def test_r1_leaves_unit_rows_with_a_mean_of_zero_until_they_are_renormalised(rows):
    np.testing.assert_allclose(R1(renormalize=False).fit(rows).transform(rows).mean(0, dtype=np.float64), 0, atol=1e-7)
    assert np.linalg.norm(R1().fit(rows).transform(rows).mean(0)) > 1e-3


def test_r1_takes_rows_whose_mean_is_zero_and_only_normalises_them(rows):
    opposites = np.stack([rows, -rows], axis=1).reshape(-1, WIDTH)
    np.testing.assert_allclose(R1().fit(opposites).transform(rows), unit(rows), atol=1e-6)


def test_r1_and_r2_agree_on_what_is_orthogonal_to_the_mean_until_they_are_renormalised(rows, fresh):
    direction = R2().fit(rows).direction.double().numpy()
    plain = R1(renormalize=False).fit(rows).transform(fresh).astype(np.float64)
    across = plain - (plain @ direction)[:, None] * direction
    np.testing.assert_allclose(unit(across), R2().fit(rows).transform(fresh), atol=1e-5)


def test_moments_of_unit_rows_fit_r1_like_the_rows(rows):
    moments = Moments.from_vectors(unit(rows)[:150]).merge(Moments.from_vectors(unit(rows)[150:]))
    found, expected = R1().fit(moments), R1().fit(rows)
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-7)
    assert float(found.noise_floor) == pytest.approx(float(expected.noise_floor), rel=1e-6)


def test_more_rows_than_a_block_fit_r1_and_centring_like_all_at_once(embeddings):
    rows = embeddings(9000, 4)
    np.testing.assert_allclose(R1().fit(rows).mean, unit(rows).mean(0), atol=1e-7)
    np.testing.assert_allclose(MeanCentering().fit(rows).mean, rows.mean(0, dtype=np.float64), atol=1e-7)


def test_centring_subtracts_the_mean_of_rows_as_they_are_and_nothing_else(rows, lengths, fresh):
    scaled = rows * lengths
    mean = scaled.mean(0)
    centring = MeanCentering().fit(scaled)
    np.testing.assert_allclose(centring.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(centring.transform(fresh), fresh - mean, rtol=1e-5, atol=1e-5)


def test_centring_is_undone_exactly(rows, fresh):
    centring = MeanCentering().fit(rows)
    assert centring.inverse_kind == "exact"
    np.testing.assert_allclose(centring.inverse_transform(centring.transform(fresh)), fresh, atol=1e-6)


def test_centring_between_normalisations_is_r1(rows, fresh):
    chain = Chain([Normalize(), MeanCentering()]).fit(rows)
    np.testing.assert_allclose(chain.transform(fresh), R1().fit(rows).transform(fresh), atol=1e-6)
    plain = Chain([Normalize(), MeanCentering()], normalize=False).fit(rows)
    np.testing.assert_allclose(plain.transform(fresh), R1(renormalize=False).fit(rows).transform(fresh), atol=1e-6)


def test_a_random_direction_is_drawn_from_a_normal_distribution_by_its_seed(rows):
    for seed in (0, 7):
        drawn = np.random.default_rng(seed).standard_normal(WIDTH)
        direction = RandomDirection(seed).fit(rows).direction
        np.testing.assert_allclose(direction, drawn / np.linalg.norm(drawn), atol=1e-7)


def test_a_random_direction_is_projected_off_and_the_rest_renormalised(rows, fresh):
    step = RandomDirection(5).fit(rows)
    direction = step.direction.double().numpy()
    expected = unit(fresh - (fresh @ direction)[:, None] * direction)
    np.testing.assert_allclose(step.transform(fresh), expected, atol=1e-6)
    np.testing.assert_allclose(step.transform(fresh) @ direction, 0, atol=1e-6)


def test_a_random_direction_depends_on_seed_and_width_alone(rows, fresh):
    first, same, other = (
        RandomDirection(seed).fit(data).direction for seed, data in ((1, rows), (1, fresh), (2, rows))
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.equal(RandomDirection(1).fit(Moments.from_vectors(rows)).direction, first)


def test_over_many_seeds_random_directions_point_nowhere(rows):
    directions = torch.stack([RandomDirection(seed).fit(rows).direction for seed in range(400)])
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1, atol=1e-6)
    assert directions.mean(0).norm() < 0.1
    np.testing.assert_allclose(np.cov(directions.T), np.eye(WIDTH) / WIDTH, atol=0.02)


@pytest.mark.parametrize("factor", [1e-15, -3.0, 1e15])
def test_a_row_parallel_to_the_random_direction_becomes_exactly_zero(rows, factor):
    step = RandomDirection(5).fit(rows)
    row = (factor * step.direction.double().numpy())[None].astype(np.float32)
    assert not step.transform(row).any()
    assert not Chain([step]).fold().transform(row).any()


def test_a_random_direction_needs_vectors_two_wide():
    with pytest.raises(StepError, match="rand removes a direction: it needs vectors of at least 2 dimensions"):
        RandomDirection().fit(np.ones((4, 1)))


@pytest.mark.parametrize("cls", [R1, MeanCentering])
@pytest.mark.parametrize("data", [np.ones((0, 4)), Moments()], ids=["array", "moments"])
def test_no_rows_have_no_mean(cls, data):
    with pytest.raises(InputError, match="no rows"):
        cls().fit(data)


@pytest.mark.parametrize("seed", [-1, 1.5, "x", None, True])
def test_seeds_that_are_none_are_refused(seed):
    with pytest.raises(StepError, match="rand: seed must be a whole number from 0"):
        Chain([RandomDirection(seed)])


def test_a_renormalisation_is_true_or_false():
    with pytest.raises(StepError, match="r1: renormalize must be true or false, got 1"):
        Chain([R1(1)])
