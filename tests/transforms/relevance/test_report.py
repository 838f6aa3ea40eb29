"""Figures of probabilities, compared with scikit-learn's and with what is known of made ones."""

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, roc_auc_score

from lathe.transforms.errors import InputError
from lathe.transforms.relevance import evaluate_probabilities, measure_auroc


def draw(n, seed=0):
    """Return probabilities that are true, and outcomes."""
    random = np.random.default_rng(seed)
    probabilities = random.random(n)
    return probabilities, random.random(n) < probabilities


def test_auroc_and_brier_are_those_of_scikit_learn():
    probabilities, right = draw(300)
    probabilities = probabilities.round(1)  # with ties
    report = evaluate_probabilities(probabilities, right)
    assert report.auroc[0] == pytest.approx(roc_auc_score(right, probabilities))
    assert report.brier == pytest.approx(brier_score_loss(right, probabilities))
    assert report.skill == pytest.approx(1 - report.brier / np.var(right))


def test_auroc_of_hits_that_are_all_right_is_nan():
    assert np.isnan(measure_auroc(np.ones(3), np.ones(3, bool)))


def test_intervals_hold_the_true_value_about_as_often_as_they_say():
    # AUROC of true probabilities that are uniform: 5/6.
    held = 0
    for seed in range(40):
        _, low, high = evaluate_probabilities(*draw(200, seed)).auroc
        held += low <= 5 / 6 <= high
    assert held >= 34


def test_true_probabilities_are_calibrated_and_shifted_ones_are_not():
    probabilities, right = draw(5_000)
    assert evaluate_probabilities(probabilities, right).ece < 0.02
    assert evaluate_probabilities(probabilities / 2, right).ece == pytest.approx(0.25, abs=0.02)


def test_a_threshold_answers_the_largest_share_at_its_precision():
    probabilities, right = draw(500)
    report = evaluate_probabilities(probabilities, right)
    for precision, threshold in report.thresholds.items():
        above = probabilities >= threshold
        assert right[above].mean() >= float(precision)
        assert above.mean() == report.answered[precision][0]
        lower = probabilities[probabilities < threshold]
        assert all(right[probabilities >= other].mean() < float(precision) for other in lower)
    # True uniform probabilities above t have a mean of (1 + t)/2: 80 % above .6, which are 40 %.
    assert report.answered["0.8"][0] == pytest.approx(0.4, abs=0.1)
    assert report.answered["0.8"][1] < 0.4 < report.answered["0.8"][2]


def test_equal_probabilities_are_not_cut_apart():
    right = np.arange(100) < 60
    report = evaluate_probabilities(np.full(100, 0.6), right)
    assert report.answered["0.8"][0] == 0
    assert report.thresholds["0.8"] is None


def test_a_sentence_says_what_can_be_answered_or_that_nothing_can():
    probabilities, right = draw(500)
    assert evaluate_probabilities(probabilities, right).sentence.startswith("With min_probability 0.")
    random = np.random.default_rng(1)
    without = evaluate_probabilities(probabilities, random.random(500) < 0.3)
    assert not without.separates
    assert without.sentence.startswith("No threshold separates right from wrong hits here (AUROC 0.")
    low = evaluate_probabilities(probabilities / 3, random.random(500) < probabilities / 3)
    assert low.separates
    assert "no threshold surely reaches a precision of 80%" in low.sentence


@pytest.mark.parametrize(
    ("probabilities", "right", "message"),
    [
        (np.full(29, 0.5), np.arange(29) < 9, "at least 30"),
        (np.full(30, 0.5), np.arange(40) < 9, "at least 30"),
        (np.full(40, 1.5), np.arange(40) < 9, "between 0 and 1"),
        (np.full(40, np.nan), np.arange(40) < 9, "between 0 and 1"),
        (np.full(40, 0.5), np.zeros(40, bool), "nothing to separate"),
    ],
)
def test_what_cannot_be_judged_is_refused(probabilities, right, message):
    with pytest.raises(InputError, match=message):
        evaluate_probabilities(probabilities, right)
