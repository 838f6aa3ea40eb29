import numpy as np
import pytest

from lathe.training.finetuning.regularizers.regularizer import RegularizerSettings
from lathe.training.finetuning.regularizers.shrinkage import (
    compute_dispersion_threshold,
    count_active_dimensions,
    fit_shrinkage,
)
from lathe.transforms.statistics import Moments

SPREAD = (3.0, 2.0, 1.0)
OUTLIER = np.array([[0.0, 1, 0], [0, -1, 0], [6, 0, 0]])
"""Means of three sources. Less the mean of all, (2, 0, 0): μ = (-2, -2, 4) along the first axis, (1, -1, 0) along the
second. With SPREAD the covariance is diag(8 + 3, 2/3 + 4/3, 1/3) = diag(11, 2, 1/3), so the eigenvectors are the axes.

Medians m = (-2, 0, 0). Eq. 2: v = ((0 + 0 + 36)/3, (1 + 1 + 0)/3, 0) = (12, 2/3, 0).
Eq. 4: the median is 2/3, the deviations from it 34/3, 0, 2/3, their median 2/3: θ = 4/3, which 12 alone exceeds.
Eq. 5: the band of the first axis is (0 + 0 + 6)/3 = 2; only the third source is beyond it.
Eq. 6: α = 1 + η (-2 + 2 - 4)/|4| = 1 - η.
"""


def settings(**given):
    return RegularizerSettings(**({"epsilon_denominator": 0.0} | given))


def build_rows_around(means, spread=SPREAD):
    """Build rows by source: about each mean, some to both sides along every axis."""
    steps = np.vstack([np.diag(spread), -np.diag(spread)])
    return [np.asarray(mean) + steps[:, : len(mean)] for mean in means]


def sample_rows(seed, sizes=(40, 40, 40, 40, 40), dimensions=6):
    """Sample rows by source, in a rotated space."""
    generator = np.random.default_rng(seed)
    turned = np.linalg.qr(generator.normal(size=(dimensions, dimensions)))[0]
    scales = np.linspace(2, 0.5, dimensions)
    centres = generator.normal(size=(len(sizes), dimensions)) * scales**3
    return [
        (generator.normal(size=(size, dimensions)) * scales + centre) @ turned
        for size, centre in zip(sizes, centres, strict=True)
    ]


def fit(rows, **given):
    return fit_shrinkage([Moments.from_vectors(part) for part in rows], settings(**given))


def apply(shrinkage, rows):
    """Return the targets of rows by source."""
    sources = np.repeat(np.arange(len(rows)), [len(part) for part in rows])
    return np.split(shrinkage.apply(np.vstack(rows), sources), np.cumsum([len(part) for part in rows])[:-1])


def only(place, value, shape=(3, 3), rest=1.0):
    """Build an array that has `value` at one place and `rest` elsewhere."""
    expected = np.full(shape, rest)
    expected[place] = value
    return expected


def test_fit_shrinkage_of_one_outlier_source_equals_a_hand_computation():
    found = fit(build_rows_around(OUTLIER), strength=0.7)
    np.testing.assert_allclose(found.mean, [2, 0, 0], atol=1e-12)
    np.testing.assert_allclose(np.abs(found.basis), np.eye(3), atol=1e-12)
    np.testing.assert_allclose(found.eigenvalues, [11, 2, 1 / 3])
    np.testing.assert_allclose(found.dispersion, [12, 2 / 3, 0], atol=1e-12)
    np.testing.assert_allclose(found.dispersion_threshold, 4 / 3, rtol=1e-7)
    np.testing.assert_allclose(found.band, [2, 2 / 3, 0], atol=1e-12)
    np.testing.assert_allclose(found.shrink, only((2, 0), 0.3), atol=1e-12)
    assert (found.active, found.clipped, found.changed.tolist()) == (3, 0, [0])
    assert not found.shift.any()


def test_a_source_is_moved_to_its_own_side_of_the_centre():
    rows = build_rows_around(
        [[-9.0, 0, 0], [1, 0, 0], [4, 0, 0], [4, 0, 0]]
    )  # m = 5/2, deviations -23/2, -3/2, 3/2, 3/2
    found = apply(fit(rows, strength=1.0, scale=0.25, operation="translate"), rows)  # the band is 4/4 = 1
    np.testing.assert_allclose([part[:, 0].mean() for part in found], [1.5, 1.5, 3.5, 3.5], atol=1e-6)


def test_epsilon_denominator_is_added_to_the_magnitude_of_the_mean():
    found = fit(build_rows_around(OUTLIER), strength=0.5, epsilon_denominator=1.0)
    np.testing.assert_allclose(found.shrink[2, 0], 1 - 0.5 * 4 / 5)


def test_two_sources_are_moved_below_scale_1_only():
    for seed in range(5):
        found = fit(sample_rows(seed, (30, 55)), strength=1.0, scale=1.0)
        np.testing.assert_allclose(found.shrink, 1, atol=1e-12)
    rows = build_rows_around([[0.0, 0, 0], [4, 0, 0]])  # v = (4, 0, 0), θ = 0 + ε; the band is γ 2, μ = ∓2
    found = fit(rows, strength=1.0, scale=0.5)
    np.testing.assert_allclose(found.shrink[:, 0], [0.5, 0.5])


def test_a_single_source_is_not_moved():
    rows = sample_rows(1, (25,))
    for operation in ("scale", "translate"):
        found = fit(rows, operation=operation, epsilon_threshold=0.0, epsilon_denominator=1e-8)
        assert found.changed.tolist() == []
        np.testing.assert_array_equal(apply(found, rows)[0], rows[0].astype(np.float32))


def test_equal_rows_have_no_active_dimension():
    found = fit([np.ones((4, 3)), np.ones((2, 3)), np.ones((1, 3))])
    assert (found.active, found.dispersion_threshold, found.changed.tolist()) == (0, np.inf, [])


def test_active_dimensions_are_the_fewest_that_explain_the_ratio_despite_rounding():
    counts = {0.5: 1, 0.824: 1, 0.826: 2, 0.974: 2, 0.976: 3, 1.0: 3}  # 0.825 and 0.975 of 13.33
    assert {ratio: count_active_dimensions(np.array([11, 2, 1 / 3]), ratio) for ratio in counts} == counts
    assert count_active_dimensions(np.array([3.0, 1, 0]), 0.75) == 1
    assert count_active_dimensions(np.array([0.3, 0.3, 0.3, 0.1]), 0.9) == 3
    assert count_active_dimensions(np.full(10, 0.1), 0.7) == 7
    assert count_active_dimensions(np.array([2.0, 1, 1, 0, 0]), 1.0) == 3
    assert count_active_dimensions(np.zeros(3), 1.0) == 0


def test_epsilon_threshold_alone_raises_the_threshold_if_the_mad_is_0():
    assert compute_dispersion_threshold(np.array([1.0, 1, 1, 9]), settings(epsilon_threshold=0.5, scale=2)) == 2.0
    rows = build_rows_around(np.array([[0.0, 0, 0], [0, 0, 0], [6, 0, 0]]))  # v = (12, 0, 0): median and MAD are 0
    assert fit(rows, epsilon_threshold=11.9).changed.tolist() == [0]
    assert fit(rows, epsilon_threshold=12.1).changed.tolist() == []


def test_factors_outside_zero_to_one_are_clipped_and_counted():
    rows = build_rows_around(OUTLIER)  # at γ = 1/2 the band is 1: 1 + (-2 + 1 - 4)/4 = -1/4
    clipped = fit(rows, strength=1.0, scale=0.5)
    free = fit(rows, strength=1.0, scale=0.5, clip=False)
    assert (clipped.shrink[2, 0], clipped.clipped) == (0.0, 1)
    np.testing.assert_allclose(free.shrink[2, 0], -0.25)
    assert free.clipped == 0
    mirrored = fit([part * [-1, 1, 1] for part in rows], denominator="literal")  # 1 + 0.7 (2 - 2 + 4)/|-4| = 1.7
    assert (mirrored.shrink[2, 0], mirrored.clipped) == (1.0, 1)


def test_center_median_of_an_even_count_is_the_mean_of_the_middle_two():
    """`center: mean` uses the mean. Band and dispersion are about the same centre."""
    means = np.array([[0.0, 0, 0], [2, 0, 0], [6, 0, 0], [100, 0, 0]])
    rows = build_rows_around(means)
    centred = means[:, 0] - 27
    for center, expected in (("median", 4 - 27), ("mean", 0)):
        found = fit(rows, center=center)
        np.testing.assert_allclose(found.center * found.basis[0], [expected, 0, 0], atol=1e-12)
        np.testing.assert_allclose(found.band[0], np.abs(centred - expected).mean())
        np.testing.assert_allclose(found.dispersion[0], ((centred - expected) ** 2).mean())


def test_targets_depend_on_eigenvector_signs_with_the_literal_denominator_only():
    rows, mirror = build_rows_around(OUTLIER), np.array([-1.0, 1, 1])
    mirrored = [part * mirror for part in rows]
    for denominator, same in (("signed", True), ("literal", False)):
        plain = np.vstack(apply(fit(rows, denominator=denominator), rows))
        turned = np.vstack(apply(fit(mirrored, denominator=denominator), mirrored))
        assert np.allclose(turned * mirror, plain, atol=1e-6) == same


def test_operation_translate_shifts_a_sources_mean_and_keeps_its_spread():
    rows = build_rows_around(OUTLIER)
    found = fit(rows, strength=0.7, operation="translate")
    np.testing.assert_allclose(found.shift @ found.basis.T, only((2, 0), -2.8, rest=0.0), atol=1e-12)  # 0.7 · -4
    assert (found.shrink == 1).all()
    for moved, part in zip(apply(found, rows), rows, strict=True):
        np.testing.assert_allclose(moved - moved.mean(axis=0), part - part.mean(axis=0), atol=1e-6)


def test_offsets_are_the_deviations_from_the_centre_in_the_variant_dimensions():
    rows = build_rows_around(OUTLIER)
    np.testing.assert_allclose(fit(rows).offsets(), only((2, 0), 6, rest=0.0), atol=1e-6)
    rows = sample_rows(3)
    found = fit(rows, strength=0.0)
    without = np.array([part.mean(axis=0) for part in rows]) - found.offsets()
    in_space = (without - found.mean) @ found.basis
    variant = np.abs(found.offsets() @ found.basis).max(axis=0) > 1e-6
    assert 0 < variant.sum() < 6
    np.testing.assert_allclose(in_space[:, variant], np.tile(found.center[variant], (5, 1)), atol=1e-6)
    np.testing.assert_allclose(in_space[:, ~variant], found.source_means[:, ~variant], atol=1e-6)


@pytest.mark.parametrize("operation", ["scale", "translate"])
def test_apply_equals_a_computation_with_full_matrices(operation):
    rows = sample_rows(7)
    found = fit(rows, operation=operation, scale=0.5)
    assert 0 < len(found.changed) < 6
    for source, (moved, part) in enumerate(zip(apply(found, rows), rows, strict=True)):
        matrix = found.basis @ np.diag(found.shrink[source]) @ found.basis.T
        expected = (part - found.mean) @ matrix.T + found.basis @ found.shift[source] + found.mean
        assert moved.dtype == np.float32
        np.testing.assert_allclose(moved, expected, rtol=1e-6, atol=1e-6)
