from dataclasses import replace

import pytest

from lathe.training.comparison import Interval
from lathe.training.deciding.debiasing import METHODS, NOTHING, DebiasingComparison, DebiasingTrial
from lathe.training.deciding.evidence import count_rows_for_heldout, list_shortages
from lathe.training.deciding.sample import count_heldout
from lathe.training.sources.row_sample import RowSample

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
    for cut, instead in ((0, "longer texts would tell"), (1, "not even the most rows")):
        (short,) = list_shortages(make_sample(rows=1200, cut=cut), debiasing())
        assert short.more is None and short.instead.startswith(instead)
