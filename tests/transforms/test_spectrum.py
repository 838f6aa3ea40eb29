import numpy as np
import pytest

from transforms.statistics import Spectrum


def tied(width):
    """A matrix whose directions have all entries of one size: the rows of a Hadamard matrix."""
    signs = np.ones((1, 1))
    while len(signs) < width:
        signs = np.block([[signs, signs], [signs, -signs]])
    directions = signs / np.sqrt(width)
    return directions.T @ np.diag(np.arange(1.0, width + 1)) @ directions


@pytest.mark.parametrize("width", [2, 4, 16])
def test_rounding_does_not_choose_the_sign_of_a_direction_whose_entries_are_equal_in_size(width):
    matrix = tied(width)
    first = Spectrum.of(matrix).directions
    assert (first[:, 0] > 0).all()
    for seed in range(20):
        noise = np.random.default_rng(seed).normal(size=matrix.shape) * 1e-15
        found = Spectrum.of(matrix + noise + noise.T).directions
        np.testing.assert_allclose(found, first, atol=1e-12)


def test_the_largest_entry_of_a_direction_is_positive_and_rows_lie_in_order():
    rows = np.random.default_rng(0).normal(size=(50, 9))
    found = Spectrum.of(rows.T @ rows)
    assert found.directions.flags.c_contiguous
    assert (found.directions[np.arange(9), np.abs(found.directions).argmax(axis=1)] > 0).all()
    np.testing.assert_allclose((found.directions.T * found.values) @ found.directions, rows.T @ rows, rtol=1e-10)
