import numpy as np
import pytest
from scipy import stats

from lathe.training.comparison import Interval
from lathe.training.deciding.debiasing import (
    METHODS,
    NOTHING,
    choose_by_halves,
    choose_by_mean_norm,
    compare_debiasing,
    estimate_gain,
)


def test_compare_debiasing_chooses_r2_if_vectors_share_a_direction(make_sample):
    found = compare_debiasing(make_sample(common=2.0))
    assert [trial.method for trial in found.trials] == list(METHODS)
    assert found.chosen == "R2" and "R2" not in found.why
    r2, nothing = found.trial("R2"), found.trial(NOTHING)
    assert r2.gain.low > 0 and r2.retrieval > nothing.retrieval + 0.05
    assert r2.mean_norm < nothing.mean_norm / 4 and nothing.gain is None and nothing.recall_at_10 == 1.0


def test_compare_debiasing_without_a_common_direction_chooses_nothing(make_sample):
    """The reason names whitening as harmful."""
    found = compare_debiasing(make_sample(spectrum=1.0, noise=0.1))
    assert found.chosen == NOTHING and "significantly worse: " in found.why and "whitening" in found.why
    assert found.trial("R2").gain.sign == 0 and found.trial("whitening").gain.high < -1


def test_estimate_gain_is_a_paired_t_interval_at_the_bonferroni_level():
    random = np.random.default_rng(0)
    ranks, control = random.random((2, 200))
    wanted = stats.ttest_rel(100 * ranks, 100 * control).confidence_interval(1 - 0.05 / 6)
    found = estimate_gain(ranks, control)
    assert (found.low, found.high) == (pytest.approx(wanted.low), pytest.approx(wanted.high))


def test_choose_by_halves_prefers_the_simpler_of_two_methods_without_a_clear_difference():
    random = np.random.default_rng(0)
    control = random.random(500) * 0.5
    ranks = {NOTHING: control, "R2": control + 0.1 + 0.05 * random.standard_normal(500), "ABTT-1": control + 0.1}
    ranks["ABTT-1"] = ranks["R2"] + 0.001 + 0.1 * random.standard_normal(500)
    assert choose_by_halves(ranks)[0] == "R2"
    ranks["ABTT-1"] = ranks["R2"] + 0.05
    ranks["ABTT-1"][0] += 0.01
    chosen, why = choose_by_halves(ranks)
    assert chosen == "ABTT-1" and "points" in why


@pytest.mark.parametrize(("common", "chosen"), [(0.0, NOTHING), (2.0, "R2")])
def test_with_29_texts_cut_in_two_only_the_length_of_the_mean_decides(make_sample, common, chosen):
    found = compare_debiasing(make_sample(common=common, cut=29))
    assert (found.by_halves, found.chosen) == (NOTHING, chosen)
    assert "only 29 held-out texts" in found.why and "are needed to tell" in found.why
    assert (f"‖μ‖ is {found.trial(NOTHING).mean_norm:.2f}" in found.why) == (chosen == "R2")
    assert all(trial.gain is None and trial.retrieval is None for trial in found.trials)


def test_compare_debiasing_names_a_method_that_cannot_be_fitted_and_tries_the_others(make_sample):
    found = compare_debiasing(make_sample(rows=120, width=2))
    assert found.trial("ABTT-3").problem and found.trial("R2").gain is not None


def test_choose_by_mean_norm_keeps_a_choice_by_halves_and_never_chooses_r2_if_harmful():
    unclear = Interval(0.1, -0.2, 0.4)
    assert choose_by_mean_norm(NOTHING, 0.5, unclear) == choose_by_mean_norm(NOTHING, 0.9, None) == "R2"
    assert choose_by_mean_norm(NOTHING, 0.49, unclear) == NOTHING
    assert choose_by_mean_norm(NOTHING, 0.9, Interval(-0.3, -0.4, -0.2)) == NOTHING
    assert choose_by_mean_norm("whitening", 0.9, unclear) == "whitening"
