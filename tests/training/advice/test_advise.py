from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from lathe.training.advice.advise import (
    advise,
    build_advice,
    cosine_of_means,
    list_remarks,
    list_warnings,
    require_enough_encoded,
)
from lathe.training.advice.debiasing import METHODS, NOTHING, DebiasingComparison, DebiasingTrial
from lathe.training.advice.request import AdviceRequest
from lathe.training.advice.sizes import SizeComparison, SizeTrial
from lathe.training.advice.summary import summarize_advice
from lathe.training.errors import AdviceError
from lathe.training.evaluation.statistics import Interval
from lathe.training.sources.row_sample import RowSample

FULL = SizeTrial("", 384, 1.0, 1.0, Interval(1.0, None, None), 0.5, Interval(0.0, None, None), 1536, 8.0)
SIZE = replace(FULL, reducer="PCA", dimensions=96, rescored_4x=Interval(0.97, 0.96, 0.98), loss=Interval(-1, -2, 0))


def ignore_progress(_fraction, _sentence):
    return


def list_given_warnings(confirmed, trials=(), problems=None, keep=0.95):
    """Return the warnings of an advice with the confirmed chain, trials and problems."""
    sizes = SizeComparison(FULL, [], problems or {}, 1000)
    return list(list_warnings(DebiasingComparison(list(trials), NOTHING, NOTHING, "why"), sizes, confirmed, keep))


def test_cosine_of_means_ignores_vector_lengths_and_is_none_for_a_zero_mean():
    east, north = np.tile([1.0, 0.0], (10, 1)), np.tile([0.0, 1.0], (10, 1))
    fit, heldout = np.concatenate([100 * east, north]), np.concatenate([east, 100 * north])
    assert cosine_of_means(fit, heldout) == pytest.approx(1)
    assert cosine_of_means(fit, 5 * east) == pytest.approx(np.sqrt(0.5))
    assert cosine_of_means(fit, np.concatenate([east, -7 * east])) is None


def test_list_warnings_is_empty_for_a_chain_that_retains_enough_and_for_no_chain():
    assert list_given_warnings(SIZE) == [] and list_given_warnings(None) == []


def test_list_warnings_names_what_just_misses_the_share_to_keep():
    (halves,) = list_given_warnings(replace(SIZE, loss=Interval(-2, -3, -1)))
    assert "just misses the 95 %" in halves and "96.0 % [94.0, 98.0] of the score in split-half retrieval" in halves
    assert "neighbours" not in halves
    (neighbours,) = list_given_warnings(replace(SIZE, rescored_4x=Interval(0.952, 0.948, 0.956)))
    assert "95.2 % [94.8, 95.6] of the ten nearest neighbours with rescoring" in neighbours
    assert "split-half" not in neighbours
    (both,) = list_given_warnings(SIZE, keep=0.97)
    assert "of the ten nearest neighbours with rescoring and 98.0 % [96.0, 100.0] of the score in split-half" in both


def test_list_warnings_names_methods_and_reducers_that_could_not_be_fitted():
    trials = [
        DebiasingTrial(NOTHING, "normalize"),
        DebiasingTrial("whitening", METHODS["whitening"], problem="singular"),
    ]
    said = list_given_warnings(SIZE, trials, {"PCA": "too few rows"})
    assert said == ["whitening could not be fitted: singular.", "PCA could not be fitted: too few rows."]


def test_list_remarks_counts_zero_held_out_vectors(make_sample):
    sample = make_sample(rows=300)
    sample.heldout[:3] = 0
    assert "3 of 150 held-out vectors are zero: they have no direction." in list_remarks(sample, 3)
    assert not any("zero" in note for note in list_remarks(make_sample(), 0))


@pytest.mark.parametrize(
    ("fit", "heldout", "sampled", "refused"),
    [(50, 0, 100, True), (24, 500, 1000, True), (25, 500, 1000, False), (1, 2, 4, True), (2, 2, 4, False)],
)
def test_require_enough_encoded_refuses_a_sample_with_too_few_encoded_rows(make_sample, fit, heldout, sampled, refused):
    """The error names the encoder's failure and the number of rows left."""
    sample = replace(make_sample(), fit=np.ones((fit, 4)), heldout=np.ones((heldout, 4)))
    failed = {"text": "RuntimeError: index out of range"}
    if not refused:
        require_enough_encoded("some.txt", sample, sampled, failed)
        return
    told = rf"fails on {sampled - fit - heldout} of .* of some.txt \(RuntimeError: index .*\): {fit} are left to fit on"
    with pytest.raises(AdviceError, match=told):
        require_enough_encoded("some.txt", sample, sampled, failed)


class FailsOnMost:
    """Encoder that raises for all texts but one."""

    name, dimensions, fingerprint = "fails on most", 4, "print"
    vectors_key = fingerprint
    prompts, default_prompt_name = {}, None

    def encode(self, texts):
        if list(texts) != ["the text number 7 of many that are here"]:
            raise RuntimeError("no")
        return SimpleNamespace(vectors=np.ones((1, 4), np.float32))

    def describe(self):
        return {"name": self.name, "fingerprint": self.fingerprint}


def test_advise_refuses_an_encoder_that_fails_on_119_of_120_texts(tmp_path):
    lines = [f"the text number {number} of many that are here" for number in range(120)]
    (tmp_path / "some.txt").write_text("\n".join(lines))
    with pytest.raises(AdviceError, match=r"fails on 119 of 120 texts of some.txt \(RuntimeError: no\)"):
        advise(AdviceRequest(str(tmp_path / "some.txt")), FailsOnMost(), tmp_path, ignore_progress)


@pytest.mark.release
def test_advice_on_vectors_with_a_long_mean_recommends_r2_consistently(make_sample):
    """Without halves and out-of-domain text the summary has one reason, and says what was not measured."""
    sample = make_sample(rows=240, common=2.0)
    vectors = np.concatenate([sample.heldout, sample.fit])
    row_sample = RowSample([], vectors, 240, 0, 0.0)
    sample = replace(sample, row_sample=row_sample, halves=None, cut=0, out_of_domain=None)
    found = build_advice(AdviceRequest("rows.npy"), "rows.npy", sample, None, ignore_progress)
    assert (found.best.steps, found.matryoshka.first_hold_more) == ("r2", False)
    said = " ".join(summarize_advice(found))
    assert said.count("recommended for the length of the mean, not measured here") == 1
    assert "promises no gain" not in said and "gained under CLS pooling" in said and "encoder is" not in said
    changed = 10 * (1 - found.debiasing.trial("R2").recall_at_10)
    assert "128 bytes a vector, as before." in said
    assert f"R2 changes {changed:.1f} of the ten nearest neighbours" in found.best.cost
    assert "the vectors name no encoder to make any with" in said


@pytest.mark.release
def test_advice_on_180_rows_does_not_judge_the_first_coordinates(make_sample):
    found = build_advice(AdviceRequest("some.txt"), "some.txt", make_sample(rows=180), {"name": "any"}, ignore_progress)
    assert found.matryoshka is None and found.heldout == 90
    assert any(
        one.startswith("With 90 held-out rows it is not told whether the first") for one in summarize_advice(found)
    )
