from dataclasses import replace

import pytest

from lathe.training.advice.budgets import CODES, BudgetComparison, BudgetTrial
from lathe.training.advice.debiasing import METHODS, NOTHING, DebiasingComparison, DebiasingTrial
from lathe.training.advice.recommendation import recommend, recommend_budget
from lathe.training.advice.sample import count_heldout
from lathe.training.advice.sample_size import check_row_count, list_shortages, rows_for_fit, rows_for_heldout
from lathe.training.advice.sizes import SizeComparison, SizeTrial
from lathe.training.evaluation.statistics import Interval
from lathe.training.sources.row_sample import RowSample

UNCLEAR = Interval(0.0, -0.2, 0.2)


def debiasing(chosen=NOTHING, gain=UNCLEAR):
    """Build a comparison of debiasing methods in which one is chosen."""
    trials = [DebiasingTrial(name, steps, 0.5, None if name == NOTHING else gain) for name, steps in METHODS.items()]
    return DebiasingComparison(trials, chosen, chosen, "why")


def trial(reducer, size, recall=0.9, rescored=0.99, retrieval=0.5):
    """Build the trial of a reducer at a size."""
    loss = 100 * (retrieval - 0.5)
    near = Interval(rescored, rescored - 0.002, rescored + 0.002)
    return SizeTrial(reducer, size, 0.9, recall, near, retrieval, Interval(loss, loss, loss), 4 * size, size / 10)


FULL = trial("", 384, 1.0, 1.0)


def sizes(*trials, full=FULL, rows=1000):
    """Build a comparison of sizes from trials."""
    return SizeComparison(full, list(trials), {}, rows)


def test_recommend_chooses_the_fewest_dimensions_that_retain_enough():
    found = sizes(
        trial("nested GeoPres", 192), trial("nested GeoPres", 96, 0.8, 0.96), trial("nested GeoPres", 48, 0.6, 0.94)
    )
    best, second = recommend(debiasing("R2"), found, 0.95)
    assert (best.steps, best.dimensions, best.bytes) == ("r2,geopres:96,nested=true", 96, 384)
    assert second.steps == "r2,geopres:192,nested=true"
    assert "75 % less" in best.cost and "about 4×" in best.cost
    assert any("96 dimensions" in reason for reason in best.reasons)


def test_recommend_requires_enough_split_half_retrieval_too():
    found = sizes(trial("PCA", 192, retrieval=0.49), trial("PCA", 96, retrieval=0.47))
    assert recommend(debiasing(), found, 0.95)[0].dimensions == 192
    assert recommend(debiasing(), found, 0.9)[0].dimensions == 96


def test_recommend_judges_by_neighbours_alone_without_halves():
    full = replace(trial("", 384, 1.0, 1.0), retrieval=None, loss=None)
    found = sizes(replace(trial("PCA", 96), retrieval=None, loss=None), full=full)
    best, second = recommend(debiasing(), found, 0.95)
    assert best.steps == "pca:96,center=none" and second is None
    assert not any("split-half" in sentence for sentence in (*best.reasons[1:], best.cost))


@pytest.mark.parametrize(
    ("recalls", "chosen"),
    [((0.90, 0.88, 0.70), "nested GeoPres"), ((0.90, 0.895, 0.70), "PCA"), ((0.90, 0.895, 0.892), "truncation")],
)
def test_recommend_chooses_the_simplest_of_reducers_with_about_equal_recall(recalls, chosen):
    trials = [
        trial(name, 96, recall) for name, recall in zip(("nested GeoPres", "PCA", "truncation"), recalls, strict=True)
    ]
    best, second = recommend(debiasing(), sizes(*trials), 0.95)
    assert best.reducer == chosen and second.reducer != chosen and second.dimensions == 96


def test_recommend_compares_the_lower_bounds_of_the_intervals():
    just = replace(trial("PCA", 96), rescored_4x=Interval(0.951, 0.949, 0.953))
    assert recommend(debiasing(), sizes(just, trial("PCA", 192)), 0.95)[0].dimensions == 192
    just = replace(trial("PCA", 96, retrieval=0.48), loss=Interval(-2.0, -2.6, -1.4))
    assert recommend(debiasing(), sizes(just, trial("PCA", 192)), 0.95)[0].dimensions == 192
    assert recommend(debiasing(), sizes(just, trial("PCA", 192)), 0.94)[0].dimensions == 96


def test_recommend_keeps_all_dimensions_if_no_size_retains_enough_and_names_the_nearest():
    found = sizes(trial("PCA", 192, 0.5, 0.8), trial("nested GeoPres", 192, 0.5, 0.9))
    best, second = recommend(debiasing(), found, 0.95)
    assert (best.steps, best.dimensions) == ("", 384)
    assert second.steps == "geopres:192,nested=true" and not second.keeps and "nearest" in second.reasons[1]
    best, _ = recommend(debiasing("R2"), found, 0.95)
    assert best.steps == "r2" and "no size that was tried keeps" in best.reasons[1]


def test_recommend_recommends_no_size_below_500_rows():
    best, second = recommend(debiasing("R2"), sizes(trial("truncation", 96), rows=499), 0.95)
    assert (best.steps, second) == ("r2", None) and "cannot be told" in best.reasons[1]


def test_recommend_budget_takes_the_fewest_bytes_whose_lower_bounds_keep_enough():
    def codes(budget, rescored, loss):
        recall = Interval(rescored, rescored - 0.002, rescored + 0.002)
        points = None if loss is None else Interval(loss, loss - 0.2, loss + 0.2)
        return BudgetTrial(CODES, f"codes:{budget}", budget, budget, recall, recall, points)

    trials = [codes(16, 0.94, -0.1), codes(24, 0.99, -2.4), codes(32, 0.99, -2.2), codes(48, 0.99, 0.0)]
    found = BudgetComparison(trials, [], {}, 500)
    assert recommend_budget(found, FULL, 0.95).budget == 32
    assert recommend_budget(found, FULL, 0.9).budget == 16 and recommend_budget(found, FULL, 0.999) is None
    assert recommend_budget(replace(found, chains=[codes(24, 0.99, None)]), FULL, 0.95).budget == 24
    assert recommend_budget(replace(found, rows=499), FULL, 0.9) is None


def test_recommend_gives_the_measured_difference_as_the_reason_for_a_reducer():
    clear = sizes(trial("PCA", 96, 0.9), trial("nested GeoPres", 96, 0.7), trial("truncation", 96, 0.5))
    best, second = recommend(debiasing(), clear, 0.95)
    assert best.reducer == "PCA" and best.reasons[2].endswith("it is the best there.")
    assert second.reducer == "nested GeoPres" and second.reasons[2].endswith("it is 0.200 below PCA.")
    alike = sizes(trial("PCA", 96, 0.895), trial("nested GeoPres", 96, 0.9))
    assert "simpler than nested GeoPres" in recommend(debiasing(), alike, 0.95)[0].reasons[2]


def test_check_row_count_says_how_many_rows_are_missing_to_100():
    assert check_row_count(10).more == 90 and check_row_count(100) is None


def test_rows_for_heldout_and_rows_for_fit_are_the_fewest_that_split_into_enough():
    for wanted in (50, 999, 1000, 1001, 2500, 4000):
        total = rows_for_heldout(wanted)
        assert count_heldout(total) >= min(wanted, 4000) > count_heldout(total - 3)
    for wanted in (300, 1000, 1280, 3840, 10_240, 40_000):
        total = rows_for_fit(wanted)
        assert total - count_heldout(total) >= wanted > (total - 3) - count_heldout(total - 3)


WIDE = Interval(0.3, -0.7, 1.3)


@pytest.mark.parametrize("cut", [True, 60])
def test_list_shortages_names_what_needs_more_rows_and_how_many(make_sample, cut):
    sample = make_sample(rows=600, cut=cut)
    best, _ = recommend(debiasing(), sizes(trial("PCA", 96)), 0.95)
    gain, size, fit = list_shortages(sample, debiasing(gain=WIDE), best)
    assert f"{sample.cut} texts cut in two" in gain.what and gain.more == rows_for_heldout(1201) - 600
    assert "300 held-out rows" in size.what and size.more == 400
    assert "960 rows" in fit.what and fit.more == rows_for_fit(960) - 600
    told = debiasing(gain=Interval(2.3, 1.3, 3.3))
    assert list_shortages(sample, told, replace(best, dimensions=30)) == [size]


def test_list_shortages_names_texts_too_short_to_cut_but_not_for_vectors(make_sample):
    sample = make_sample(rows=1200, cut=10)
    best, _ = recommend(debiasing(), sizes(), 0.95)
    (short,) = list_shortages(sample, debiasing(), best)
    assert "cannot be told: 10 held-out texts have the 8 words" in short.what
    assert short.more == rows_for_heldout(1800) - 1200  # of which 1 in 60 can be cut
    assert count_heldout(1200 + short.more) * 10 / 600 == pytest.approx(30)
    vectors = replace(sample, row_sample=RowSample([], sample.fit, 1200, 0, 0.0))
    assert list_shortages(vectors, debiasing(), best) == []


def test_list_shortages_asks_for_no_more_rows_if_hardly_a_text_can_be_cut(make_sample):
    best, _ = recommend(debiasing(), sizes(), 0.95)
    for cut, instead in ((0, "longer texts would tell"), (1, "not even the most rows")):
        (short,) = list_shortages(make_sample(rows=1200, cut=cut), debiasing(), best)
        assert short.more is None and short.instead.startswith(instead)
