from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from lathe.training.comparison import Interval
from lathe.training.deciding.debiasing import METHODS, NOTHING, DebiasingComparison, DebiasingTrial
from lathe.training.deciding.evidence import (
    MIN_LEAD,
    REDUCERS,
    compare_first_coordinates,
    compare_reducers,
    count_rows_for_heldout,
    find_failing_cuts,
    list_dimensions,
    list_shortages,
)
from lathe.training.deciding.sample import count_heldout
from lathe.training.measures import rank_halves
from lathe.training.sources.row_sample import RowSample
from lathe.transforms import Chain, local_spearman, parse_steps, recall_at_k
from lathe.transforms.quality import recall_per_row

UNCLEAR = Interval(0.0, -0.2, 0.2)
WIDE = Interval(0.3, -0.7, 1.3)


def debiasing(gain=UNCLEAR):
    """Build a comparison of debiasing methods in which none is chosen."""
    trials = [DebiasingTrial(name, steps, 0.5, None if name == NOTHING else gain) for name, steps in METHODS.items()]
    return DebiasingComparison(trials, NOTHING, NOTHING, "why")


def test_rows_for_heldout_are_the_fewest_that_split_into_enough():
    for wanted in (50, 999, 1000, 1001, 2500, 4000):
        total = count_rows_for_heldout(wanted)
        assert count_heldout(total) >= min(wanted, 4000) > count_heldout(total - 3)


@pytest.mark.parametrize("cut", [True, 60])
def test_list_shortages_names_what_needs_more_rows_and_how_many(make_sample, cut):
    sample = make_sample(rows=600, cut=cut)
    gain, size = list_shortages(sample, debiasing(gain=WIDE))
    assert f"{sample.cut} texts cut in two" in gain.what and gain.more == count_rows_for_heldout(1201) - 600
    assert "300 held-out rows" in size.what and size.more == 400
    assert [*list_shortages(sample, debiasing(gain=Interval(2.3, 1.3, 3.3)))] == [size]


def test_list_shortages_names_texts_too_short_to_cut_but_not_for_vectors(make_sample):
    sample = make_sample(rows=1200, cut=10)
    (short,) = list_shortages(sample, debiasing())
    assert "cannot be told: 10 held-out texts have the 8 words" in short.what
    assert short.more == count_rows_for_heldout(1800) - 1200  # of which 1 in 60 can be cut
    assert count_heldout(1200 + short.more) * 10 / 600 == pytest.approx(30)
    vectors = replace(sample, row_sample=RowSample([], sample.fit, 1200, 0, 0.0))
    assert [*list_shortages(vectors, debiasing())] == []


def test_list_shortages_asks_for_no_more_rows_if_hardly_a_text_can_be_cut(make_sample):
    for cut, instead in ((0, "longer texts would help"), (1, "not even the maximum number")):
        (short,) = list_shortages(make_sample(rows=1200, cut=cut), debiasing())
        assert short.more is None and short.instead.startswith(instead)


pytestmark = pytest.mark.usefixtures("few_steps")


def test_list_sizes_returns_shares_of_the_dimensions_in_multiples_of_8():
    sizes = {384: [192, 128, 96, 64, 48, 32, 24], 16: [8], 8: [], 1024: [512, 344, 256, 168, 128, 88, 64]}
    assert {width: list_dimensions(width) for width in sizes} == sizes


def find_trial(found, reducer, size):
    """Return the measurements of a reducer at a number of dimensions."""
    return next(trial for trial in found.trials if (trial.reducer, trial.dimensions) == (reducer, size))


def test_every_reducer_and_size_is_compared_with_the_full_vectors(make_sample):
    """Each metric equals its direct computation."""
    sample = make_sample(rows=300, width=32, spectrum=0.7, common=1.0)
    said = []
    found = compare_reducers(sample, "r2", lambda fraction, sentence: said.append((fraction, sentence)))
    assert {(trial.reducer, trial.dimensions) for trial in found.trials} == {
        (reducer, size) for reducer in REDUCERS for size in list_dimensions(32)
    }
    assert [fraction for fraction, _ in said] == sorted(fraction for fraction, _ in said)
    assert (found.problems, found.rows) == ({}, 150)
    full = found.full
    assert (full.dimensions, full.recall_at_10, full.local_spearman) == (32, 1.0, pytest.approx(1.0))
    before = Chain(parse_steps("r2")).fit(sample.fit).transform(sample.heldout)
    chain = Chain(parse_steps("r2,pca:16,center=none")).fit(sample.fit)
    trial = find_trial(found, "PCA", 8)
    reduced = chain.transform(sample.heldout, dimensions=8)
    assert trial.local_spearman == pytest.approx(local_spearman(before, reduced))
    assert trial.recall_at_10 == pytest.approx(recall_at_k(before, reduced))
    rescored = recall_per_row(before, reduced, 10, 4)
    interval = stats.ttest_1samp(rescored, 0).confidence_interval(0.95)
    assert (trial.rescored_4x.value, trial.rescored_4x.low) == pytest.approx((rescored.mean(), interval.low))
    assert trial.retrieval == pytest.approx(rank_halves(chain, sample.halves, dimensions=8).mean())
    assert trial.loss.value == pytest.approx(100 * (trial.retrieval - full.retrieval))


def test_a_reducer_that_cannot_be_fitted_is_named_and_the_others_are_measured(make_sample):
    found = compare_reducers(make_sample(rows=100, width=160), "normalize", lambda _fraction, _sentence: None)
    assert "PCA" in found.problems and find_trial(found, "truncation", 80).recall_at_10 > 0


def test_compare_first_coordinates_tells_ordered_coordinates_from_unordered_ones():
    random = np.random.default_rng(0)
    rows = random.standard_normal((400, 64))
    ordered = rows * np.arange(1, 65) ** -0.7
    assert compare_first_coordinates(ordered).first_hold_more
    found = compare_first_coordinates(rows)
    assert not found.first_hold_more and [cut["dimensions"] for cut in found.cuts] == [32, 16, 8]
    assert all(cut["random"] <= cut["best"] for cut in found.cuts)
    assert found.cuts[1]["first"] == pytest.approx(100 * recall_at_k(rows, rows[:, :16]))
    mixed = ordered @ np.linalg.qr(random.standard_normal((64, 64)))[0]
    found = compare_first_coordinates(mixed)
    failing = find_failing_cuts(found.cuts)
    assert not found.first_hold_more and failing
    assert all(cut["first"] <= cut["best"] or cut["first"] - cut["random"] < MIN_LEAD for cut in failing)
