import subprocess
import sys

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from scipy.stats import rankdata, spearmanr

from lathe.transforms import (
    InputError,
    Moments,
    angular_stress,
    isoscore,
    local_spearman,
    pearson_compat,
    positional_stress,
    recall_at_k,
)
from lathe.transforms.quality import compare_neighbours, cross_recall_at_k, local_spearman_per_row, recall_per_row

METRICS = [local_spearman, positional_stress, lambda before, after: recall_at_k(before, after, 2)]

PEAK = """
import sys
import numpy as np
from lathe import transforms
def peak_kb():  # not ru_maxrss, which a process inherits from the one that started it
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

rng = np.random.default_rng(0)
before = rng.standard_normal((int(sys.argv[2]), 32), dtype=np.float32)
metric = getattr(transforms, sys.argv[1])  # which imports torch
held = peak_kb()
metric(before, before[:, :8].copy())
print((peak_kb() - held) / 1024)
"""


def spaces(n, d=24, k=8, seed=0):
    rng = np.random.default_rng(seed)
    before = rng.normal(size=(n, d)) * np.linspace(1, 0.3, d) + 0.2
    return before.astype(np.float32), (before @ rng.normal(size=(d, k))).astype(np.float32)


def signs(n, d, seed):
    """Return rows whose cosines are exact in float32 and often tied."""
    return np.random.default_rng(seed).choice([-1.0, 1.0], size=(n, d)).astype(np.float32)


def cosines(rows, others=None):
    rows, others = (np.asarray(r, np.float64) for r in (rows, rows if others is None else others))
    unit, other = (r / np.linalg.norm(r, axis=1, keepdims=True) for r in (rows, others))
    return unit @ other.T


def others(matrix):
    """Return the matrix without its diagonal, `(n, n − 1)`."""
    n = len(matrix)
    return matrix[~np.eye(n, dtype=bool)].reshape(n, n - 1)


def brute_recall(before, after, k, oversampling):
    original, reduced = cosines(before), cosines(after)
    np.fill_diagonal(original, -np.inf)
    np.fill_diagonal(reduced, -np.inf)
    shares = []
    for i in range(len(before)):
        candidates = np.argsort(-reduced[i])[: k * oversampling]
        found = candidates[np.argsort(-original[i][candidates])][:k]
        shares.append(len(set(found) & set(np.argsort(-original[i])[:k])) / k)
    return np.mean(shares)


def test_local_spearman_gives_ties_their_average_rank_as_scipy_does():
    before, after = signs(50, 16, 0), signs(50, 4, 1)
    # NumPy's float64 cosines of ±1 rows are exact here too, so that the ties are the same.
    pairs = zip(others(cosines(before)), others(cosines(after)), strict=True)
    expected = [spearmanr(a, b).statistic for a, b in pairs]
    assert len(np.unique(cosines(after))) == 5
    assert local_spearman(before, after) == pytest.approx(np.mean(expected), abs=1e-9)


@pytest.mark.parametrize("n", [511, 512, 513, 1100])
def test_local_spearman_of_one_or_several_blocks_equals_a_direct_computation(n):
    before, after = spaces(n)
    a, b = (rankdata(others(cosines(rows)), axis=1) for rows in (before, after))
    a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
    expected = ((a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))).mean()
    assert local_spearman(before, after) == pytest.approx(expected, abs=1e-5)


def test_local_spearman_is_one_for_a_rotation_zero_for_equal_rows_and_near_zero_for_noise():
    before, _ = spaces(200)
    rotation, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(24, 24)))
    assert local_spearman(before, (3 * before @ rotation).astype(np.float32)) == pytest.approx(1, abs=1e-5)
    assert local_spearman(before, np.ones((200, 4), np.float32)) == 0
    noise = np.random.default_rng(2).normal(size=(200, 8)).astype(np.float32)
    assert abs(local_spearman(before, noise)) < 0.05


@pytest.mark.parametrize("oversampling", [1, 2, 4])
@pytest.mark.parametrize(("n", "k"), [(60, 1), (60, 10), (700, 10)])
def test_recall_at_k_equals_a_brute_force_search(n, k, oversampling):
    before, after = spaces(n)
    assert recall_at_k(before, after, k, oversampling) == pytest.approx(brute_recall(before, after, k, oversampling))


def test_recall_at_k_is_one_if_every_other_row_is_a_candidate_and_refuses_more_candidates():
    before, after = spaces(21)
    assert recall_at_k(before, after, 5, oversampling=4) == 1
    assert recall_at_k(before, after, 20) == 1
    with pytest.raises(InputError, match="at least 22 rows, got 21"):
        recall_at_k(before, after, 7, oversampling=3)


@pytest.mark.parametrize(("k", "oversampling"), [(0, 1), (-1, 1), (5, 0)])
def test_recall_at_k_refuses_k_or_oversampling_below_one(k, oversampling):
    with pytest.raises(InputError):
        recall_at_k(*spaces(30), k, oversampling)


@pytest.mark.parametrize("n", [2, 100, 511, 512, 513, 1100])
def test_positional_stress_equals_scipys_pdist_over_all_pairs(n):
    before, after = spaces(n)
    expected = np.mean((pdist(before.astype(np.float64)) - pdist(after.astype(np.float64))) ** 2)
    assert positional_stress(before, after) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("decay", [0.0, 0.5, 2.0])
def test_isoscore_matches_algorithm_1_of_its_paper(decay):
    d = 12
    rows = np.random.default_rng(0).normal(size=(500, d)) * np.arange(1, d + 1) ** -decay + 5
    variances = np.linalg.eigvalsh(np.cov(rows.T))
    # Rudman et al. (2022), Algorithm 1: normalise, isotropy defect, fraction of dimensions used.
    scaled = np.sqrt(d) * variances / np.linalg.norm(variances)
    defect = np.linalg.norm(scaled - 1) / np.sqrt(2 * (d - np.sqrt(d)))
    used = (d - defect**2 * (d - np.sqrt(d))) ** 2 / d**2
    assert isoscore(Moments.from_vectors(rows)) == pytest.approx((d * used - 1) / (d - 1), rel=1e-9)


def test_isoscore_is_one_for_isotropic_rows_and_zero_for_one_direction_or_equal_rows():
    corners = np.vstack([np.eye(6), -np.eye(6)])
    assert isoscore(Moments.from_vectors(corners)) == pytest.approx(1)
    assert isoscore(Moments.from_vectors(np.outer(np.arange(9.0), np.arange(1.0, 5.0)))) == pytest.approx(0, abs=1e-12)
    assert isoscore(Moments.from_vectors(np.full((9, 4), 0.3))) == 0
    assert isoscore(Moments.from_vectors(np.arange(9.0)[:, None])) == 0


@pytest.mark.parametrize("n", [60, 600])
def test_metrics_of_single_anchors_are_in_row_order_and_average_to_the_metric(n):
    before, after = spaces(n)
    correlations, recalls = local_spearman_per_row(before, after), recall_per_row(before, after, 5, 2)
    assert correlations.shape == recalls.shape == (n,)
    assert correlations.mean() == pytest.approx(local_spearman(before, after), abs=1e-12)
    assert recalls.mean() == pytest.approx(recall_at_k(before, after, 5, 2), abs=1e-12)
    for i in (0, 7, n - 1):
        expected = spearmanr(others(cosines(before))[i], others(cosines(after))[i]).statistic
        assert correlations[i] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("rows", "after", "reason"), [(20, 19, "20 rows before and 19 after"), (1, 1, "at least [23] rows, got 1")]
)
def test_metrics_refuse_a_single_row_and_different_numbers_of_rows(metric, rows, after, reason):
    before, mapped = spaces(rows)
    with pytest.raises(InputError, match=reason):
        metric(before, mapped[:after])


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_metrics_of_float16_and_float64_are_within_0_02_of_float32(metric, dtype):
    before, after = spaces(80)
    assert metric(before.astype(dtype), after.astype(dtype)) == pytest.approx(metric(before, after), abs=0.02)


@pytest.mark.parametrize("metric", METRICS)
def test_metrics_accept_read_only_and_reversed_arrays(metric, torch_warns_always):
    before, after = spaces(80)
    expected = metric(before, after)
    before.flags.writeable = False
    assert metric(before, after) == expected
    assert metric(before[::-1], after[::-1]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("n", [2, 9, 1500])
def test_angular_stress_is_the_mean_squared_difference_of_cosines_over_all_pairs(n):
    before, after = spaces(n)
    upper = np.triu_indices(n, 1)
    expected = ((cosines(before) - cosines(after))[upper] ** 2).mean()
    assert angular_stress(before, after) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("n", [3, 40, 1500])
def test_pearson_compat_is_the_mean_over_rows_of_numpys_correlation_of_cosines_to_other_rows(n):
    before, after = spaces(n)
    first, second = cosines(before), cosines(after)
    rows = range(0, n, max(1, n // 40))
    keep = ~np.eye(n, dtype=bool)
    expected = [np.corrcoef(first[i][keep[i]], second[i][keep[i]])[0, 1] for i in range(n)]
    assert pearson_compat(before, after) == pytest.approx(np.mean(expected), abs=1e-6)
    assert all(abs(expected[i]) <= 1 for i in rows)


def test_near_copies_of_a_neighbour_are_misses_in_recall_at_k_and_hits_in_compat_recall():
    rng = np.random.default_rng(0)
    before = np.repeat(rng.normal(size=(30, 8)), 4, axis=0).astype(np.float32)
    before += rng.normal(size=before.shape).astype(np.float32) * 1e-5
    after = before + rng.normal(size=before.shape).astype(np.float32) * 1e-5
    assert recall_at_k(before, after, 1) < 0.7
    assert recall_at_k(before, after, 1, compat=True) == 1


@pytest.mark.parametrize("n", [12, 1500])
def test_cross_recall_equals_a_brute_force_search(n):
    rng = np.random.default_rng(0)
    targets = rng.normal(size=(n, 12)).astype(np.float32)
    outputs = targets + rng.normal(size=(n, 12)).astype(np.float32) * 0.5
    among, from_outputs = cosines(targets), cosines(outputs, targets)
    np.fill_diagonal(among, -np.inf)
    np.fill_diagonal(from_outputs, -np.inf)
    top = [np.argsort(-m, axis=1)[:, :10] for m in (among, from_outputs)]
    expected = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(*top, strict=True)])
    assert cross_recall_at_k(outputs, targets) == pytest.approx(expected)
    assert cross_recall_at_k(targets, targets) == 1


def test_cross_recall_refuses_different_numbers_of_rows_and_fewer_than_11_rows():
    with pytest.raises(InputError, match="do not correspond"):
        cross_recall_at_k(np.ones((20, 2)), np.ones((19, 2)))
    with pytest.raises(InputError, match="at least 11 rows"):
        cross_recall_at_k(np.ones((10, 2)), np.ones((10, 2)))


@pytest.mark.release
@pytest.mark.parametrize(
    "metric", ["local_spearman", "pearson_compat", "recall_at_k", "positional_stress", "angular_stress"]
)
def test_metrics_of_6000_rows_take_less_memory_than_one_matrix_of_all_pairs(metric):
    out = subprocess.run([sys.executable, "-P", "-c", PEAK, metric, "6000"], capture_output=True, text=True, check=True)
    assert float(out.stdout) < 250  # one matrix of 6,000 × 6,000 in float64 is 288 MB, and each has several


@pytest.fixture(scope="module")
def rows():
    return (np.random.default_rng(0).normal(size=(300, 48)) * np.geomspace(1, 0.1, 48) + 0.3).astype(np.float32)


def test_rows_that_are_not_finite_share_no_neighbours(rows):
    spoiled = rows[:, :16].copy()
    spoiled[::2] = np.nan

    found = compare_neighbours(rows, rows[:, :16], spoiled)

    assert found["agreement_at_k"]["value"] == 0.5
    assert found["raw_recall_at_k"]["difference"]["high"] < 0


def test_as_few_rows_as_neighbours_are_refused(rows):
    with pytest.raises(InputError, match="10 neighbours need more than 10 rows"):
        compare_neighbours(rows[:10], rows[:10], rows[:10])
