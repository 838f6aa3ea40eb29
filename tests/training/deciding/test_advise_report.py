import re

import numpy as np

from lathe.training.deciding.advise import Advice
from lathe.training.deciding.advise_report import summarize_evidence
from lathe.training.deciding.debiasing import METHODS, NOTHING, DebiasingComparison, DebiasingTrial
from lathe.training.deciding.evidence import Evidence, Matryoshka, Shortage
from lathe.training.deciding.places.decision import PlaceDecision
from lathe.transforms.quality import diagnose

DIAGNOSIS = diagnose(np.random.default_rng(0).standard_normal((100, 8)).astype(np.float32)) | {
    "mean_norm": 0.6,
    "noise_floor": 0.03,
}
HOLDS = {"dimensions": 48, "first": 70.0, "random": 60.0, "best": 65.0}
DECISION = PlaceDecision("lathe", 2000, "cosine", 0.95, "Leave the vectors as they are.")


def debiasing(by_halves="R2", chosen="R2"):
    """Build a comparison of debiasing methods."""
    trials = [DebiasingTrial(name, steps, 0.5, None, 0.6, 0.87) for name, steps in METHODS.items()]
    return DebiasingComparison(trials, by_halves, chosen, "why")


def summarize(capped=False, **parts):
    """Return the sentences about evidence with the given parts replaced."""
    advice = Advice("some.txt", {"name": "any"}, 2000, 2000, capped, 1000, DECISION)
    given = {"matryoshka": Matryoshka([HOLDS | {"dimensions": 96}, HOLDS], True), "debiasing": debiasing()}
    return summarize_evidence(advice, Evidence(1000, DIAGNOSIS, 0.99, **(given | parts)))


def find_sentences(pattern, capped=False, **parts):
    """Return those sentences that match a pattern."""
    return [said for said in summarize(capped, **parts) if re.search(pattern, said)]


def test_debiasing_is_named_with_its_steps_and_what_it_changes():
    assert find_sentences("^Debiasing") == [
        "Debiasing: R2 (r2); why. It changes the neighbours on purpose: 1.3 of the ten that the raw vectors have, so "
        "that the decision, which keeps them, does not include it."
    ]
    assert find_sentences("^Debiasing", debiasing=debiasing(NOTHING, NOTHING)) == ["Debiasing: none; why."]


def test_summary_says_a_long_mean_promises_no_gain_unless_it_decided():
    assert "Its size alone promises no gain." in summarize()
    (said,) = find_sentences("mean direction|size alone", debiasing=debiasing(by_halves=NOTHING))
    assert "and large: it holds 36 %" in said


def test_summary_quotes_a_number_of_first_coordinates_that_supports_its_verdict():
    (said,) = find_sentences("first coordinates")
    assert said.startswith("The first coordinates hold more") and "the first 48 find 70.0 %" in said
    behind = {"dimensions": 96, "first": 80.0, "random": 79.0, "best": 81.0}
    (said,) = find_sentences("first coordinates", matryoshka=Matryoshka([HOLDS, behind, HOLDS], False))
    assert "do not reliably hold more" in said and "the first 96 find 80.0 %" in said and "81.0 % at best." in said
    near = Matryoshka([HOLDS, behind | {"best": 79.5}], False)
    (said,) = find_sentences("first coordinates", matryoshka=near)
    assert said.endswith("79.5 % at best; at least 2 points above the average are required.") and "encoder" not in said


def test_summary_says_how_many_more_rows_would_suffice():
    for capped, shortage, said in (
        (False, Shortage("too few", 40), "Too few; about 40 more distinct rows would be enough."),
        (True, Shortage("too few", 40), "Too few; measuring 2,040 rows might tell (--sample-rows)."),
        (False, Shortage("too few", None), "Too few; not even the maximum number of held-out rows would be enough."),
        (False, Shortage("too few", None, "longer texts would"), "Too few; longer texts would."),
    ):
        assert find_sentences("^Too few", capped, shortages=[shortage]) == [said]
