from dataclasses import replace

import numpy as np
import pytest

from lathe.training.deciding.advise import check_encoded_rows, list_remarks
from lathe.training.deciding.evidence import compute_cosine_of_means, measure_evidence
from lathe.training.errors import AdviceError
from lathe.training.sources.row_sample import RowSample
from lathe.transforms.progress import no_progress


def test_cosine_of_means_ignores_vector_lengths_and_is_none_for_a_zero_mean():
    east, north = np.tile([1.0, 0.0], (10, 1)), np.tile([0.0, 1.0], (10, 1))
    fit, heldout = np.concatenate([100 * east, north]), np.concatenate([east, 100 * north])
    assert compute_cosine_of_means(fit, heldout) == pytest.approx(1)
    assert compute_cosine_of_means(fit, 5 * east) == pytest.approx(np.sqrt(0.5))
    assert compute_cosine_of_means(fit, np.concatenate([east, -7 * east])) is None


def test_list_remarks_counts_zero_held_out_vectors(make_sample):
    sample = make_sample(rows=300)
    sample.heldout[:3] = 0
    assert "3 of 150 held-out vectors are zero: they have no direction." in list_remarks(sample)
    assert not any("zero" in note for note in list_remarks(make_sample()))


@pytest.mark.parametrize(
    ("fit", "heldout", "sampled", "refused"),
    [(50, 0, 100, True), (24, 500, 1000, True), (25, 500, 1000, False), (1, 2, 4, True), (2, 2, 4, False)],
)
def test_require_enough_encoded_refuses_a_sample_with_too_few_encoded_rows(make_sample, fit, heldout, sampled, refused):
    """The error names the encoder's failure and the number of rows left."""
    failed = {"text": "RuntimeError: index out of range"}
    sample = replace(make_sample(), fit=np.ones((fit, 4)), heldout=np.ones((heldout, 4)), failed=failed)
    if not refused:
        check_encoded_rows("some.txt", sample, sampled)
        return
    told = rf"fails on {sampled - fit - heldout} of .* of some.txt \(RuntimeError: index .*\): {fit} are left to fit on"
    with pytest.raises(AdviceError, match=told):
        check_encoded_rows("some.txt", sample, sampled)


@pytest.mark.usefixtures("few_steps")
def test_evidence_on_vectors_with_a_long_mean_favours_r2_for_its_length(make_sample):
    """Without halves there is one reason, and it says what was not measured."""
    sample = make_sample(rows=240, common=2.0)
    vectors = np.concatenate([sample.heldout, sample.fit])
    sample = replace(sample, row_sample=RowSample([], vectors, 240, 0, 0.0), halves=None, cut=0)
    found = measure_evidence(sample, 0, no_progress)
    assert (found.debiasing.chosen, found.matryoshka.first_hold_more) == ("R2", False)
    assert "recommended for the length of the mean, not measured here" in found.debiasing.why
    assert "gained under CLS pooling" in found.debiasing.why and found.problems == []


@pytest.mark.usefixtures("few_steps")
def test_evidence_of_few_rows_says_what_it_cannot_tell(make_sample):
    found = measure_evidence(make_sample(rows=180), 0, no_progress)
    assert found.matryoshka is None and found.debiasing is not None
    found = measure_evidence(make_sample(rows=90), 0, no_progress)
    assert found.debiasing is None and found.sizes is None and found.shortages[0].more == 10


@pytest.mark.usefixtures("few_steps")
def test_methods_that_cannot_be_fitted_are_named(make_sample):
    found = measure_evidence(make_sample(rows=100, width=160), 0, no_progress)
    assert any(said.startswith("PCA could not be fitted: ") for said in found.problems)
