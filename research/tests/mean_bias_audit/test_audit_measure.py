import numpy as np
import pytest

from lathe.transforms import Moments
from research.mean_bias_audit.means import (
    measure_direction,
    measure_language_means,
    measure_mean_growth,
    measure_norms,
    measure_prompt_mean,
    sample_means,
)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def measure_growth_by_size(rows, **options):
    """Return the points of `measure_mean_growth` by sample size."""
    return {point.n: point for point in measure_mean_growth(rows, Moments.from_vectors(rows), **options)}


def test_measure_norms_summarizes_row_lengths_and_is_none_without_rows():
    found = measure_norms(np.array([[3, 4], [0, 1.0009], [0, 0], [0, -1.0011]], np.float32))
    lengths = [5, 1.0009, 0, 1.0011]
    assert (found.texts, found.zero_rows, found.unit) == (4, 1, 1 / 4)
    assert (found.min, found.max) == (0, 5)
    assert found.mean == pytest.approx(np.mean(lengths), rel=1e-6)
    assert found.std == pytest.approx(np.std(lengths), rel=1e-6)
    assert measure_norms(np.empty((0, 2), np.float32)) is None


def test_sample_means_samples_without_replacement_and_larger_samples_contain_smaller_ones():
    sizes = [10, 30, 300]
    means = sample_means(np.eye(300, dtype=np.float32), sizes, draws=4, seed=1)
    assert means.shape == (4, 3, 300)
    for size, some in zip(sizes, np.moveaxis(means, 1, 0), strict=True):
        assert np.isin(np.round(some * size, 9), [0, 1]).all()
        np.testing.assert_allclose(some.sum(axis=1), 1)
    assert (means[:, 1][means[:, 0] > 0] > 0).all()
    assert len(np.unique(means[:, 0] > 0, axis=0)) == 4


def test_mean_growth_of_gaussian_vectors_follows_their_mean_and_covariance():
    """E‖μ_n‖² = ‖μ‖² + tr Σ / n with μ = (.3, 0, 0, 0) and Σ = diag(1, 4, 9, 16) / 10."""
    deviations = np.sqrt([0.1, 0.4, 0.9, 1.6])
    rows = np.random.default_rng(0).normal(size=(40_000, 4)) * deviations + [0.3, 0, 0, 0]
    found = measure_growth_by_size(rows, draws=400)
    assert list(found) == [10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 40_000]
    for n, point in found.items():
        assert point.expected_square == pytest.approx(0.09 + 3 / n, abs=0.01)
        assert point.noise_floor == pytest.approx(np.sqrt(3 / n), rel=0.02)
    assert found[10].ratio == pytest.approx(1, abs=0.1)  # 400 draws of sums of few squares
    assert found[1000].ratio == pytest.approx(1, abs=0.03)
    assert found[10].norm ** 2 < found[10].expected_square  # the average length is below the root of the average square
    assert found[10].cosine < 0.7 < 0.95 < found[1000].cosine < found[10_000].cosine < 1
    last = found[40_000]
    assert (last.draws, found[10].draws) == (1, 400)
    assert (last.ratio, last.cosine) == (pytest.approx(1, rel=1e-9), pytest.approx(1, rel=1e-12))
    assert last.norm == pytest.approx(np.linalg.norm(rows.mean(axis=0)), rel=1e-12)


def test_means_of_dependent_consecutive_rows_have_a_larger_error_than_random_ones():
    """Paragraphs of 50 rows share half their variance: 5.5 times the error within one, 25.5 times over many."""
    random = np.random.default_rng(0)
    topics = np.repeat(random.normal(size=(400, 6)), 50, axis=0)
    points = measure_growth_by_size(topics + random.normal(size=topics.shape) + [2, 0, 0, 0, 0, 0])
    assert 3 < points[10].consecutive < 8
    assert 10 < points[1000].consecutive < 40
    assert points[1000].ratio == pytest.approx(1, abs=0.05)  # which random samples cannot tell
    assert points[20_000].consecutive is None


def test_a_mean_longer_than_the_deviation_is_the_first_uncentered_component():
    """The mean is orthogonal to the direction of the largest variance."""

    def found(length):
        rows = np.array([[2, length, 0], [-2, length, 0], [0, length, 1], [0, length, -1]], np.float32)
        return measure_direction(rows, Moments.from_vectors(rows))

    assert (found(1.5).centered, found(1.5).uncentered) == (pytest.approx(0, abs=1e-7), pytest.approx(1))
    assert (found(1.4).centered, found(1.4).uncentered) == (pytest.approx(0, abs=1e-7), pytest.approx(0, abs=1e-7))
    assert found(1.5).mean_norm == 1.5
    assert found(1.5).noise_floor == pytest.approx(np.sqrt((8 + 2) / 4 / 4))


def test_measure_direction_gives_the_cosine_with_the_first_singular_vector():
    rows = unit(np.random.default_rng(2).normal([0.5, 0.1, 0, 0, 0.2], [1, 0.5, 0.2, 0.1, 0.3], size=(300, 5)))
    found, mean = measure_direction(rows, Moments.from_vectors(rows)), rows.mean(axis=0)
    for name, some in (("centered", rows - mean), ("uncentered", rows)):
        first = np.linalg.svd(some)[2][0]
        assert getattr(found, name) == pytest.approx(abs(first @ mean) / np.linalg.norm(mean), rel=1e-6)
    assert 0.1 < found.centered < found.uncentered < 1


def test_measure_language_means_gives_each_languages_mean_and_the_running_mean():
    vectors = {
        "en": np.array([[1, 0, 0], [0.6, 0.8, 0]]),  # mean (.8, .4, 0)
        "de": np.array([[0, 1, 0], [0, 0.6, 0.8]]),  # mean (0, .8, .4)
        "fr": np.array([[0, 0, 1], [0, 0, 1]]),
    }
    en, de, fr = measure_language_means({name: rows.astype(np.float32) for name, rows in vectors.items()})
    assert [one.language for one in (en, de, fr)] == ["en", "de", "fr"]
    assert [one.norm for one in (en, de, fr)] == pytest.approx([np.sqrt(0.8), np.sqrt(0.8), 1])
    assert [one.cosine for one in (en, de, fr)] == pytest.approx([1, 0.32 / 0.8, 0])
    means = np.array([[0.8, 0.4, 0], [0.4, 0.6, 0.2], [0.8 / 3, 0.4, 1.4 / 3]])
    assert [one.running_norm for one in (en, de, fr)] == pytest.approx(np.linalg.norm(means, axis=1))
    cosines = unit(means) @ unit(means)[-1]
    assert [one.running_cosine for one in (en, de, fr)] == pytest.approx(cosines)
    assert [one.noise_floor for one in (en, de, fr)] == pytest.approx([np.sqrt(0.2 / 2), np.sqrt(0.2 / 2), 0], abs=1e-6)


def test_measure_prompt_mean_compares_with_the_mean_of_the_texts_without_prompt():
    plain = np.array([[1, 0], [0.8, 0.6]], np.float32)  # mean (.9, .3)
    found = measure_prompt_mean("query", "query: ", np.array([[0, 1], [0.6, 0.8]], np.float32), plain)  # mean (.3, .9)
    assert (found.name, found.prompt) == ("query", "query: ")
    assert (found.norm, found.cosine) == (pytest.approx(np.sqrt(0.9)), pytest.approx(0.6))
    assert found.noise_floor == pytest.approx(np.sqrt(0.1 / 2))
    assert measure_prompt_mean("query", "query: ", np.array([[0, 1], [0, -1]], np.float32), plain).cosine is None
