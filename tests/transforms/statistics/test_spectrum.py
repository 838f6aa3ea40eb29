import numpy as np
import pytest

from lathe.transforms.statistics import Spectrum


def tied(width):
    """Return a matrix whose eigenvectors are rows of a Hadamard matrix: all entries of equal size."""
    signs = np.ones((1, 1))
    while len(signs) < width:
        signs = np.block([[signs, signs], [signs, -signs]])
    directions = signs / np.sqrt(width)
    return directions.T @ np.diag(np.arange(1.0, width + 1)) @ directions


@pytest.mark.parametrize("width", [2, 4, 16])
def test_rounding_noise_does_not_change_the_sign_of_a_direction_with_entries_of_equal_size(width):
    matrix = tied(width)
    first = Spectrum.of(matrix).directions
    assert (first[:, 0] > 0).all()
    for seed in range(20):
        noise = np.random.default_rng(seed).normal(size=matrix.shape) * 1e-15
        found = Spectrum.of(matrix + noise + noise.T).directions
        np.testing.assert_allclose(found, first, atol=1e-12)


def test_spectrum_directions_have_a_positive_largest_entry_and_reconstruct_the_matrix():
    rows = np.random.default_rng(0).normal(size=(50, 9))
    found = Spectrum.of(rows.T @ rows)
    assert found.directions.flags.c_contiguous
    assert (found.directions[np.arange(9), np.abs(found.directions).argmax(axis=1)] > 0).all()
    np.testing.assert_allclose((found.directions.T * found.values) @ found.directions, rows.T @ rows, rtol=1e-10)
