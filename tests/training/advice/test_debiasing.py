import numpy as np
import pytest
from scipy import stats

from training.advice.debiasing import (
    METHODS,
    NOTHING,
    choose_by_halves,
    choose_by_mean_norm,
    compare_debiasing,
    estimate_gain,
)
from training.evaluation.statistics import Interval, mean_interval


def test_a_direction_that_says_nothing_of_the_text_is_removed(make_sample):
    found = compare_debiasing(make_sample(common=2.0))
    assert [trial.method for trial in found.trials] == list(METHODS)
    assert found.chosen == "R2" and "R2" not in found.why
    r2, nothing = found.trial("R2"), found.trial(NOTHING)
    assert r2.gain.low > 0 and r2.retrieval > nothing.retrieval + 0.05
    assert r2.mean_norm < nothing.mean_norm / 4 and nothing.gain is None and nothing.recall_at_10 == 1.0


def test_without_one_nothing_is_done_and_whitening_is_seen_to_do_harm(make_sample):
    found = compare_debiasing(make_sample(spectrum=1.0, noise=0.1))
    assert found.chosen == NOTHING and "harm is done by" in found.why and "whitening" in found.why
    assert found.trial("R2").gain.sign == 0 and found.trial("whitening").gain.high < -1


def test_the_gain_is_a_paired_t_interval_at_the_adjusted_level():
    random = np.random.default_rng(0)
    ranks, control = random.random((2, 200))
    wanted = stats.ttest_rel(100 * ranks, 100 * control).confidence_interval(1 - 0.05 / 6)
    found = estimate_gain(ranks, control)
    assert (found.low, found.high) == (pytest.approx(wanted.low), pytest.approx(wanted.high))


def test_the_interval_of_a_mean_is_students():
    values = np.random.default_rng(0).standard_normal(20)
    found = mean_interval(values)
    wanted = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.value, found.low, found.high) == pytest.approx((values.mean(), wanted.low, wanted.high))
    assert mean_interval(np.ones(5)).low is None


def test_the_simpler_of_two_that_cannot_be_told_apart_is_chosen():
    random = np.random.default_rng(0)
    control = random.random(500) * 0.5
    ranks = {NOTHING: control, "R2": control + 0.1 + 0.05 * random.standard_normal(500), "ABTT-1": control + 0.1}
    ranks["ABTT-1"] = ranks["R2"] + 0.001 + 0.1 * random.standard_normal(500)
    assert choose_by_halves(ranks)[0] == "R2"
    ranks["ABTT-1"] = ranks["R2"] + 0.05
    ranks["ABTT-1"][0] += 0.01
    chosen, why = choose_by_halves(ranks)
    assert chosen == "ABTT-1" and "points" in why


def test_harm_is_named():
    control = np.linspace(0.2, 0.9, 100)
    chosen, why = choose_by_halves({NOTHING: control, "R1": control - 0.1 * control, "whitening": control**2})
    assert chosen == NOTHING and "harm is done by R1 and whitening" in why


def test_texts_that_cannot_be_cut_leave_it_open(make_sample):
    found = compare_debiasing(make_sample(cut=29))
    assert found.chosen == NOTHING and "only 29 held-out texts" in found.why and "cannot be told" in found.why
    assert all(trial.gain is None and trial.retrieval is None for trial in found.trials)


def test_a_method_that_cannot_be_fitted_is_named_and_the_others_go_on(make_sample):
    found = compare_debiasing(make_sample(rows=120, width=2))
    assert found.trial("ABTT-3").problem and found.trial("R2").gain is not None


def test_a_long_mean_decides_where_halves_speak_for_nothing(make_sample):
    found = compare_debiasing(make_sample(common=2.0, cut=29))
    assert found.by_halves == NOTHING and found.chosen == "R2"
    assert "only 29 held-out texts" in found.why and f"‖μ‖ is {found.trial(NOTHING).mean_norm:.2f}" in found.why


@pytest.mark.parametrize(
    ("by_halves", "mean_norm", "r2_gain", "chosen"),
    [
        (NOTHING, 0.5, Interval(0.1, -0.2, 0.4), "R2"),
        (NOTHING, 0.49, Interval(0.1, -0.2, 0.4), NOTHING),
        (NOTHING, 0.9, Interval(-0.3, -0.4, -0.2), NOTHING),
        (NOTHING, 0.9, None, "R2"),
        ("whitening", 0.9, Interval(0.1, -0.2, 0.4), "whitening"),
    ],
)
def test_what_the_halves_say_comes_first_and_harm_forbids(by_halves, mean_norm, r2_gain, chosen):
    assert choose_by_mean_norm(by_halves, mean_norm, r2_gain) == chosen
