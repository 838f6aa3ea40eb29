import re
from dataclasses import replace

import numpy as np

from lathe.training.advice.advise import Advice
from lathe.training.advice.budgets import CODES, BudgetComparison, BudgetTrial
from lathe.training.advice.cost import describe_changed_neighbours, describe_cost
from lathe.training.advice.debiasing import METHODS, NOTHING, DebiasingComparison, DebiasingTrial
from lathe.training.advice.matryoshka import DimensionCut, Matryoshka
from lathe.training.advice.recommendation import Recommendation
from lathe.training.advice.sample_size import Shortage
from lathe.training.advice.sizes import SizeComparison, SizeTrial
from lathe.training.advice.summary import summarize_advice
from lathe.training.advice.transfer import HELD_OUT, OUT_OF_DOMAIN, TransferResult
from lathe.training.evaluation.statistics import Interval
from lathe.transforms.quality import diagnose

R2 = Recommendation("r2", "R2", "", 384, 1536, True, ["R2: why."], "1,536 bytes a vector, as before.")
TRANSFER = "out-of-domain text|other text"
DIAGNOSIS = diagnose(np.random.default_rng(0).standard_normal((100, 8)).astype(np.float32)) | {
    "mean_norm": 0.6,
    "noise_floor": 0.03,
}
HOLDS = DimensionCut(48, 70.0, 60.0, 65.0)


def debiasing(by_halves="R2", **problems):
    """Build a comparison of debiasing methods that chooses R2, with problems by method."""
    trials = [DebiasingTrial(name, steps, 0.5, None, 0.6, 0.87, problems.get(name)) for name, steps in METHODS.items()]
    return DebiasingComparison(trials, by_halves, "R2", "why")


def build_transfer_result(text, gain=None, rescored=0.99):
    """Build the result of trying a chain on some text."""
    measures = {"local_spearman": 0.9, "recall_at_10": 0.8, "recall_at_10_rescored_4x": rescored}
    return TransferResult(text, 1000, measures, 0.5, gain)


def advice(**parts):
    """Build an advice with the given parts replaced."""
    given = {
        "source": "some.txt", "keep": 0.95, "encoder": {"name": "any"}, "rows": 2000, "distinct": 2000, "capped": False,
        "heldout": 1000, "cut": 1000, "diagnosis": DIAGNOSIS, "mean_agreement": 0.99,
        "debiasing": debiasing(), "matryoshka": Matryoshka([replace(HOLDS, dimensions=96), HOLDS], True), "sizes": None,
        "best": R2, "confirmed": None, "second": None, "transfer": [], "shortages": [], "notes": [],
    }  # fmt: skip
    return Advice(**given | parts)


def find_sentences(pattern, **parts):
    """Return the sentences of a summary of `advice(**parts)` that match a pattern."""
    return [said for said in summarize_advice(advice(**parts)) if re.search(pattern, said)]


def build_interval(share, reach=0.01):
    """Build an interval around a share."""
    return Interval(share, share - reach, share + reach)


def test_summary_says_how_the_chain_does_on_out_of_domain_text():
    places = [
        build_transfer_result(HELD_OUT, Interval(-0.5, -1.0, 0.0)),
        build_transfer_result(OUT_OF_DOMAIN, Interval(-5.0, -6.0, -4.0)),
    ]
    assert find_sentences(TRANSFER, transfer=places) == [
        "Among as many rows the chain keeps 90.0 % [88.0, 92.0] of the score in split-half retrieval on "
        "out-of-domain text, 99.0 % [98.0, 100.0] here: it is made for text like this source."
    ]
    assert find_sentences(TRANSFER) == ["No chain is recommended, so that there is none to try on out-of-domain text."]


def test_summary_says_a_long_mean_promises_no_gain_unless_it_decided():
    assert "Its size alone promises no gain." in summarize_advice(advice())
    (said,) = find_sentences("mean direction|size alone", debiasing=debiasing(by_halves=NOTHING))
    assert "and large: it holds 36 %" in said


def test_summary_quotes_a_number_of_first_coordinates_that_supports_its_verdict():
    (said,) = find_sentences("first coordinates")
    assert said.startswith("The first coordinates hold more") and "the first 48 find 70.0 %" in said
    behind = DimensionCut(96, 80.0, 79.0, 81.0)
    (said,) = find_sentences(
        "first coordinates", matryoshka=Matryoshka([DimensionCut(192, 99.0, 90.0, 91.0), behind, HOLDS], False)
    )
    assert "do not reliably hold more" in said and "the first 96 find 80.0 %" in said and "81.0 % at best." in said
    near = DimensionCut(96, 80.0, 79.0, 79.5)
    (said,) = find_sentences("first coordinates", matryoshka=Matryoshka([HOLDS, near], False), encoder=None)
    assert said.endswith("79.5 % at best; 2 points above the average are the least.") and "encoder" not in said


def test_summary_says_how_many_more_rows_would_suffice():
    for capped, shortage, said in (
        (False, Shortage("too few", 40), "Too few; about 40 more distinct rows would do."),
        (True, Shortage("too few", 40), "Too few; looking at 2,040 rows might tell (--rows)."),
        (False, Shortage("too few", None), "Too few; not even the most rows that are held out would tell."),
        (False, Shortage("too few", None, "longer texts would"), "Too few; longer texts would."),
    ):
        assert find_sentences("^Too few", capped=capped, shortages=[shortage]) == [said]


def test_describe_cost_names_the_reference_vectors_and_the_neighbours_that_debiasing_changes():
    full = SizeTrial("", 384, 1.0, 1.0, Interval(1.0, None, None), None, None, 1536, 8.0)
    own = replace(full, reducer="PCA", dimensions=96, recall_at_10=0.81, bytes=384, gemm_ms=1.3)
    sizes = SizeComparison(full, [own], {}, 1000)
    said = describe_cost(sizes, own, "R2")
    assert "similarities about 6× as fast" in said
    assert "of the neighbours that the debiased vectors have is 0.810" in said and "ranked again by these" in said
    assert "that the full vectors have" in describe_cost(sizes, own, NOTHING)
    trial = debiasing().trial("R2")
    assert list(describe_changed_neighbours(trial, False, build_transfer_result(HELD_OUT))) == [
        "R2 changes 1.3 of the ten nearest neighbours that the raw vectors have, on purpose."
    ]
    assert (
        "the whole chain finds 0.800, and 0.990 where"
        in list(describe_changed_neighbours(trial, True, build_transfer_result(HELD_OUT)))[1]
    )
    assert list(describe_changed_neighbours(debiasing().trial(NOTHING), True, build_transfer_result(HELD_OUT))) == []


def test_the_summary_names_the_fewest_bytes_with_their_command():
    few = BudgetTrial(CODES, "codes", 96, 96, build_interval(0.9), build_interval(0.9), Interval(0.0, -0.1, 0.1))
    budgets = BudgetComparison([few], [], {}, 1000)
    assert find_sentences("codes of", budgets=budgets, fewest_bytes=few) == [
        "Fewest bytes: codes of 96 bytes a vector keep 95 % of the ten nearest neighbours with rescoring and of the "
        "score in split-half retrieval, by the lower bounds of their intervals; recall@10 without rescoring is "
        "0.900 [0.890, 0.910]. Fit them by: lathe fit --steps r2 --bytes 96"
    ]
    (none,) = find_sentences("not reduce", budgets=budgets)
    assert none.startswith("Do not reduce to codes: not even 96 bytes a vector keep 95 % of the ten nearest")
