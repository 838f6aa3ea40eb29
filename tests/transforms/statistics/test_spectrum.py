"""Spectral tempering: the power of a whitening that is derived from the eigenvalues."""

import numpy as np
import pytest

from lathe.transforms import Chain, Moments, StepError, Whitening, parse_steps
from lathe.transforms.quality import certify
from lathe.transforms.statistics import Gaussian, Spectrum, compute_tempered_power


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
    first = Spectrum.from_matrix(matrix).directions
    assert (first[:, 0] > 0).all()
    for seed in range(20):
        noise = np.random.default_rng(seed).normal(size=matrix.shape) * 1e-15
        found = Spectrum.from_matrix(matrix + noise + noise.T).directions
        np.testing.assert_allclose(found, first, atol=1e-12)


def test_spectrum_directions_have_a_positive_largest_entry_and_reconstruct_the_matrix():
    rows = np.random.default_rng(0).normal(size=(50, 9))
    found = Spectrum.from_matrix(rows.T @ rows)
    assert found.directions.flags.c_contiguous
    assert (found.directions[np.arange(9), np.abs(found.directions).argmax(axis=1)] > 0).all()
    np.testing.assert_allclose((found.directions.T * found.values) @ found.directions, rows.T @ rows, rtol=1e-10)


def power_law(d=100, decay=1.0):
    return np.arange(1, d + 1) ** -decay


def expected(values, k):
    """Return p(k) as the paper defines it, with the knee found by measuring distances one by one."""
    signals = int(0.9 * len(values))
    noise = values[signals:].mean()
    snr = values[:signals] / noise - 1
    heights = (snr - snr[-1]) / (snr[0] - snr[-1])
    knee = max(range(signals), key=lambda i: 1 - i / (signals - 1) - heights[i])
    return min(1.0, snr[k - 1] / snr[knee])


@pytest.mark.parametrize("decay", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("k", [1, 5, 20, 60, 90])
def test_power_is_the_signal_to_noise_ratio_at_k_over_that_at_the_knee(decay, k):
    values = power_law(decay=decay)
    assert compute_tempered_power(values, k) == pytest.approx(expected(values, k), abs=1e-12)


@pytest.mark.parametrize("values", [np.ones(20), np.ones(1), np.zeros(5), np.array([2.0, 1.0])])
def test_power_of_flat_and_short_spectra_is_from_zero_to_one(values):
    for k in range(1, len(values) + 1):
        assert 0 <= compute_tempered_power(values, k) <= 1
    assert compute_tempered_power(np.ones(20), 5) == 1


def test_power_where_the_smallest_directions_are_empty_is_finite():
    values = np.append(power_law(80), np.zeros(20))
    assert 0 < compute_tempered_power(values, 40) < 1


@pytest.mark.parametrize("form", ["pca", "zca"])
def test_whitening_with_power_auto_is_the_whitening_of_the_derived_power(embeddings, form):
    rows = embeddings(500, 40)
    spectrum = Spectrum.from_matrix(Moments.from_vectors(rows).covariance())
    for k in (8, 20, 40):
        auto = Whitening(k, form, power="auto").fit(rows)
        power = compute_tempered_power(spectrum.values, k)
        np.testing.assert_allclose(auto.weight, Whitening(k, form, power=power).fit(rows).weight, rtol=1e-6)
        assert auto.chosen_parameters() == {"power": pytest.approx(power)}


def test_power_auto_is_parsed_saved_loaded_and_part_of_the_certificate(embeddings, tmp_path):
    rows = embeddings(300, 24)
    chain = Chain(parse_steps("whitening:8,power=auto")).fit(rows)
    chain.save(tmp_path / "chain")
    loaded = Chain.load(tmp_path / "chain")
    assert loaded == chain
    certificate = certify(loaded, embeddings(60, 24, seed=1), n_fit=300)
    assert certificate["chosen"] == [{"kind": "whitening", **chain.transforms[0].chosen_parameters()}]
    assert "chosen" not in certify(Chain(parse_steps("whitening:8")).fit(rows), rows, n_fit=300)


def test_a_power_in_other_words_is_refused():
    with pytest.raises(StepError, match="power must be auto or a number from 0 to 2, got 'best'"):
        parse_steps("whitening:8,power=best")


def test_power_auto_is_refused_after_steps_that_empty_directions_as_power_one_is():
    with pytest.raises(StepError, match="without variance"):
        Chain(parse_steps("r2,whitening:power=auto"))


@pytest.mark.parametrize("d", [24, 200])
def test_a_gaussian_knows_the_mean_and_the_deviation_of_dot_products_with_the_rows(embeddings, d):
    rows, queries = embeddings(3000, d), embeddings(50, d, seed=1)
    mean, deviation = Gaussian.fit(Moments.from_vectors(rows)).measure_products(queries)
    products = queries @ rows.T
    np.testing.assert_allclose(mean, products.mean(1), atol=1e-4)
    # Exact only where the variance outside of 128 directions is the same in all.
    np.testing.assert_allclose(deviation, products.std(1), rtol=1e-3 if d < 128 else 0.02)
