import numpy as np
import pytest

from training.advice.debiasing import ranks_behind
from training.advice.matryoshka import find_matryoshka
from training.advice.sizes import REDUCERS, sizes_of, try_sizes
from transforms import Chain, local_spearman, parse_steps, recall_at_k


def nothing(_fraction, _sentence):
    return


@pytest.mark.parametrize(
    ("width", "sizes"),
    [(384, [192, 128, 96, 64, 48, 32, 24]), (16, [8]), (8, []), (1024, [512, 344, 256, 168, 128, 88, 64])],
)
def test_sizes_are_shares_of_the_width_in_steps_of_eight(width, sizes):
    assert sizes_of(width) == sizes


def test_every_reducer_is_measured_at_every_size_against_what_it_starts_from(make_sample):
    sample = make_sample(rows=300, width=32, spectrum=0.7, common=1.0)
    said = []
    found = try_sizes(sample, "r2", lambda fraction, sentence: said.append((fraction, sentence)))
    assert {(trial.reducer, trial.dimensions) for trial in found.trials} == {
        (reducer, size) for reducer in REDUCERS for size in sizes_of(32)
    }
    assert [fraction for fraction, _ in said] == sorted(fraction for fraction, _ in said) and not found.problems
    full = found.full
    assert (full.dimensions, full.recall_at_10, full.local_spearman, full.bytes) == (32, 1.0, pytest.approx(1.0), 128)
    before = Chain(parse_steps("r2")).fit(sample.fit)
    chain = Chain(parse_steps("r2,pca:16,center=none")).fit(sample.fit)
    trial = found.trial("PCA", 8)
    reduced = chain.transform(sample.heldout, dimensions=8)
    assert trial.local_spearman == pytest.approx(local_spearman(before.transform(sample.heldout), reduced))
    assert trial.recall_at_10 == pytest.approx(recall_at_k(before.transform(sample.heldout), reduced))
    assert trial.retrieval == pytest.approx(ranks_behind(chain, sample.halves, 8).mean())
    assert trial.loss.value == pytest.approx(100 * (trial.retrieval - full.retrieval))
    assert trial.gemm_ms > 0 and trial.bytes == 32


def test_a_reducer_that_cannot_be_fitted_is_named(make_sample):
    found = try_sizes(make_sample(rows=100, width=160), "normalize", nothing)
    assert set(found.problems) | {trial.reducer for trial in found.trials} == set(REDUCERS)


def test_coordinates_in_the_order_of_their_weight_are_told_from_others():
    random = np.random.default_rng(0)
    rows = random.standard_normal((400, 64))
    ordered = rows * np.arange(1, 65) ** -0.7
    assert find_matryoshka(ordered).trained
    found = find_matryoshka(rows)
    assert not found.trained and [cut.dimensions for cut in found.cuts] == [32, 16, 8]
    assert all(cut.ahead.low < cut.ahead.value < cut.ahead.high for cut in found.cuts)
    mixed = ordered @ np.linalg.qr(random.standard_normal((64, 64)))[0]
    assert not find_matryoshka(mixed).trained
