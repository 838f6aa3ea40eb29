import numpy as np
import pytest

from lathe.transforms import Chain
from research.few_sentences import (
    SampledMethod,
    compare_estimated_means,
    list_mean_estimation_methods,
)
from research.fitted_methods.corpus import Corpus
from research.fitted_methods.method_cache import MethodCache


@pytest.fixture
def sampled_grid(grid_of):
    """Return a function that builds the grid of scores, with methods such as `R1 of 100, draw 0`."""

    def make(values):
        names = dict.fromkeys(name for _, name, _ in values if ", draw " in name)
        parts = [(name, *name.split(", draw ")) for name in names]
        methods = [
            SampledMethod(name, "means", label=label, steps=label[:2].lower(), sentences=int(label[6:]), draw=int(draw))
            for name, label, draw in parts
        ]
        return grid_of(values, methods=methods)

    return make


@pytest.fixture(scope="module")
def one_hot():
    """Return a corpus of sentences in orthogonal directions, so that a mean shows which sentences are in it."""
    return Corpus(np.eye(64, dtype=np.float32), np.eye(64, dtype=np.float32)[:12], "c" * 32)


def test_estimated_means_use_50_sentences_and_each_draw_other_ones(tmp_path, one_hot):
    """R1 and R2 use the same sentences in the same draw."""
    methods = list_mean_estimation_methods([50])
    assert [method.label for method in methods] == ["R1 of 50"] * 3 + ["R2 of 50"] * 3
    cache = MethodCache(tmp_path)
    keyed = [method.on("f" * 32, one_hot.digest) for method in methods]
    folders = [cache.load_or_fit(method, "f" * 32, one_hot, lambda _: None)[0].folder for method in keyed]
    found = [Chain.load(folder).transforms[0] for folder in folders]
    assert len(set(folders)) == len(folders)
    for step, name, entry in zip(found, ["mean"] * 3 + ["direction"] * 3, [1 / 50] * 3 + [50**-0.5] * 3, strict=True):
        values = getattr(step, name).numpy()
        np.testing.assert_allclose(np.sort(values), [0] * 14 + [entry] * 50, atol=1e-7)
    drawn = [tuple(np.flatnonzero(step.mean.numpy())) for step in found[:3]]
    assert len(set(drawn)) == 3
    assert [tuple(np.flatnonzero(step.direction.numpy())) for step in found[3:]] == drawn  # R1 and R2 are paired


@pytest.fixture(scope="module")
def few_sentences(table):
    """Return scores of R1 and R2 with all sentences, and in two samples of a hundred."""
    values = table("e", "ab", control=[0.1, 0.1], R1=[0.5, 0.6], R2=[0.5, 0.7])
    draws = {"R1 of 100": ([0.48, 0.60], [0.52, 0.56]), "R2 of 100": ([0.51, 0.70], [0.51, 0.68])}
    for label, each in draws.items():
        for draw, scores in enumerate(each):
            values |= {("e", f"{label}, draw {draw}", task): score for task, score in zip("ab", scores, strict=True)}
    return values


def test_compare_estimated_means_averages_over_samples_and_tasks(sampled_grid, few_sentences):
    (row,) = compare_estimated_means(sampled_grid(few_sentences))
    assert row.sentences == 100
    assert row.r1.value == pytest.approx((0 - 2) / 2)  # of tasks a and b, in points; the draws of a cancel
    assert row.r2.value == pytest.approx((1 - 1) / 2)
    assert row.r1_error.value == pytest.approx((2 + 2) / 2)  # but are errors nonetheless
    assert row.r2_error.value == pytest.approx((1 + 1) / 2)
    assert row.r2_ahead.value == pytest.approx((1 + 11) / 2)
