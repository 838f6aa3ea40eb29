import numpy as np
import pytest

from lathe.transforms import PCA, Chain, Moments, RandomProjection, RandomSelection, StepError, Truncation

WIDTH = 24
REDUCTIONS = [RandomProjection, RandomSelection, Truncation]


class Closed:
    """Vectors whose rows must not be read."""

    shape = (9, WIDTH)

    def __getitem__(self, rows):
        raise AssertionError("a row was asked for")


@pytest.fixture(scope="module")
def rows(embeddings):
    return embeddings(100, WIDTH)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_random_projection_weight_is_a_normal_draw_of_numpy_with_variance_one_over_k(rows):
    for seed in (0, 7):
        drawn = np.random.default_rng(seed).standard_normal((8, WIDTH)) / np.sqrt(8)
        projection = RandomProjection(8, seed).fit(rows)
        np.testing.assert_allclose(projection.weight, drawn, atol=1e-7)
        np.testing.assert_allclose(projection.transform(rows), rows @ drawn.T, atol=1e-5)


def test_random_selection_keeps_the_sorted_columns_that_numpys_choice_draws(rows):
    for seed in (0, 7):
        drawn = np.sort(np.random.default_rng(seed).choice(WIDTH, 8, replace=False))
        selection = RandomSelection(8, seed).fit(rows)
        np.testing.assert_array_equal(selection.columns, drawn)
        np.testing.assert_array_equal(selection.transform(rows), rows[:, drawn])


def test_truncation_keeps_the_first_columns_and_renormalises(rows):
    for k in (1, 8, WIDTH):
        np.testing.assert_allclose(Truncation(k).fit(rows).transform(rows), unit(rows[:, :k]), atol=1e-6)


def test_truncation_is_nested_and_random_projection_and_selection_are_not(rows):
    chain = Chain([Truncation(12)]).fit(rows)
    for size in (1, 5, 12):
        expected = Truncation(size).fit(rows).transform(rows)
        np.testing.assert_allclose(chain.transform(rows, dimensions=size), expected, atol=1e-6)
        np.testing.assert_allclose(chain.fold(size).transform(rows), expected, atol=1e-6)
    assert not Chain([RandomProjection(12)]).nested
    assert not Chain([RandomSelection(12)]).nested


@pytest.mark.parametrize("cls", REDUCTIONS)
def test_reduction_fit_learns_only_the_dimensions_and_reads_no_row(rows, cls):
    step = cls(8).fit(Closed())
    np.testing.assert_array_equal(step.transform(rows), cls(8).fit(rows).transform(rows))
    np.testing.assert_array_equal(cls(8).fit(Moments.from_vectors(rows)).transform(rows), step.transform(rows))


@pytest.mark.parametrize("cls", REDUCTIONS)
def test_reductions_accept_up_to_as_many_dimensions_as_their_input(rows, cls):
    assert cls(WIDTH).fit(rows).transform(rows).shape == (100, WIDTH)
    with pytest.raises(StepError, match=f"{cls.kind} to 25 needs vectors of at least 25 dimensions, not 24"):
        cls(25).fit(rows)
    with pytest.raises(StepError, match=f"{cls.kind} to 9 needs vectors of at least 9 dimensions, not 8"):
        Chain([PCA(8), cls(9)])
