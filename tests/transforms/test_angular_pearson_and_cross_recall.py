import subprocess
import sys

import numpy as np
import pytest

from lathe.transforms import InputError, angular_stress, pearson_compat, recall_at_k
from lathe.transforms.quality import cross_recall_at_k, recall_of_anchors

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


def cosines(rows, others=None):
    rows, others = (np.asarray(r, np.float64) for r in (rows, rows if others is None else others))
    unit, other = (r / np.linalg.norm(r, axis=1, keepdims=True) for r in (rows, others))
    return unit @ other.T


@pytest.mark.parametrize("n", [2, 9, 1500])
def test_angular_stress_is_the_mean_squared_difference_of_cosines_over_all_pairs(n):
    before, after = spaces(n)
    upper = np.triu_indices(n, 1)
    expected = ((cosines(before) - cosines(after))[upper] ** 2).mean()
    assert angular_stress(before, after) == pytest.approx(expected, rel=1e-9)


def test_angular_stress_ignores_row_lengths_and_is_zero_for_a_rotation():
    before, after = spaces(50)
    scaled = before * np.random.default_rng(0).uniform(0.1, 9, size=(50, 1)).astype(np.float32)
    assert angular_stress(scaled, after) == pytest.approx(angular_stress(before, after), rel=1e-5)
    rotation, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(24, 24)))
    assert angular_stress(before, before @ rotation) < 1e-12


@pytest.mark.parametrize("n", [3, 40, 1500])
def test_pearson_compat_is_the_mean_over_rows_of_numpys_correlation_of_cosines_to_other_rows(n):
    before, after = spaces(n)
    first, second = cosines(before), cosines(after)
    rows = range(0, n, max(1, n // 40))
    keep = ~np.eye(n, dtype=bool)
    expected = [np.corrcoef(first[i][keep[i]], second[i][keep[i]])[0, 1] for i in range(n)]
    assert pearson_compat(before, after) == pytest.approx(np.mean(expected), abs=1e-6)
    assert all(abs(expected[i]) <= 1 for i in rows)


def compat_by_hand(before, after, k, oversampling):
    original, reduced = cosines(before), cosines(after)
    np.fill_diagonal(original, -np.inf)
    np.fill_diagonal(reduced, -np.inf)
    shares = []
    for i in range(len(before)):
        threshold = (1 - np.sort(original[i])[::-1][k - 1]) + 1e-3
        candidates = np.argsort(-reduced[i])[: k * oversampling]
        distances = np.sort(1 - original[i][candidates])[:k]
        shares.append((distances <= threshold).sum() / k)
    return np.array(shares)


@pytest.mark.parametrize("oversampling", [1, 3])
@pytest.mark.parametrize("k", [1, 5])
def test_compat_recall_counts_neighbours_by_distance_as_ann_benchmarks_does(k, oversampling):
    before, after = spaces(200)
    expected = compat_by_hand(before, after, k, oversampling)
    np.testing.assert_allclose(recall_of_anchors(before, after, k, oversampling, compat=True), expected)
    assert (expected >= recall_of_anchors(before, after, k, oversampling)).all()


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


@pytest.mark.trial
@pytest.mark.parametrize(
    "metric", ["local_spearman", "pearson_compat", "recall_at_k", "positional_stress", "angular_stress"]
)
def test_metrics_of_6000_rows_take_less_memory_than_one_matrix_of_all_pairs(metric):
    out = subprocess.run([sys.executable, "-P", "-c", PEAK, metric, "6000"], capture_output=True, text=True, check=True)
    assert float(out.stdout) < 250  # one matrix of 6,000 × 6,000 in float64 is 288 MB, and each has several
