"""The names that a notebook imports, and what they give for texts and vectors in memory."""

import doctest

import numpy as np
import pytest

import lathe.training
import lathe.training.notebook
from lathe.training import FitResult, TrainingError, advise, evaluate, fit, load_encoder
from lathe.training.deciding.evidence import REDUCERS
from lathe.transforms import Chain, parse_steps

API = {
    "Advice",
    "Encoder",
    "EncoderSpec",
    "FitResult",
    "Results",
    "Source",
    "TrainingError",
    "advise",
    "evaluate",
    "fit",
    "load_encoder",
    "open_source",
}


@pytest.fixture(scope="module")
def rows():
    return (np.random.default_rng(0).normal(size=(400, 24)) * np.linspace(3, 0.5, 24) + 1).astype(np.float32)


def test_the_package_exports_these_names_and_no_others():
    assert lathe.training.__all__ == sorted(API)
    assert set(dir(lathe.training)) == API
    assert all(hasattr(lathe.training, name) for name in API)
    with pytest.raises(AttributeError, match="module 'lathe.training' has no attribute 'fits'"):
        lathe.training.fits  # noqa: B018


def test_a_fit_on_vectors_in_memory_returns_a_chain_with_its_certificate(rows):
    fitted = fit(rows, "r2,pca:8", gates={"recall_at_10": 0.1, "local_spearman": 1.1})

    assert isinstance(fitted, FitResult) and fitted.chain.output_dimensions == 8
    assert 0 < fitted.certificate["recall_at_10"] <= 1
    assert fitted.failed_gates == ["local_spearman"]


def test_a_fit_on_a_file_equals_one_on_the_same_vectors_in_memory(rows, tmp_path):
    np.save(tmp_path / "rows.npy", rows)

    assert fit(tmp_path / "rows.npy", "r2,pca:8").chain == fit(rows, "r2,pca:8").chain


def test_a_fit_to_a_budget_of_bytes_needs_no_steps(rows):
    assert fit(rows, bytes=8).certificate["bytes_per_vector"]["after"] == 8


def test_a_fit_on_texts_encodes_them_and_keeps_its_work_in_the_given_folder(brief_encoder, workspace):
    texts = [f"The {word} of {number} turns." for number in range(60) for word in ("lathe", "mill")]

    fitted = fit(texts, "r2,pca:8", brief_encoder, workspace=workspace)

    assert fitted.chain.metadata["encoder"]["name"] == "brief"
    assert fitted.certificate["n_fit"] + fitted.certificate["n_heldout"] == len(texts)
    assert fitted.chain.transform(brief_encoder.encode(texts[:2]).vectors).shape == (2, 8)


def test_advice_on_vectors_in_memory_decides_and_measures_evidence(rows, monkeypatch):
    monkeypatch.setitem(REDUCERS, "nested GeoPres", "geopres:{k},nested=true,steps=5")
    advice = advise(rows, sample_rows=200, seed=1)

    assert advice.rows == 400 and "nothing can be decided from" in advice.decision.sentence
    assert advice.evidence.debiasing.trials and advice.evidence.sizes.trials


def test_texts_that_cannot_be_fitted_on_are_refused(brief_encoder, workspace):
    for texts, reason in ((["a", None], "number 1 is"), (["a", ""], "4 different rows")):
        with pytest.raises(TrainingError, match=reason):
            fit(texts, "r2", brief_encoder, workspace=workspace)
    with pytest.raises(TrainingError, match="list of strings, not one string"):
        brief_encoder.encode("What is a lathe?")


def test_load_encoder_takes_the_fields_of_a_spec_and_no_others(tiny):
    encoder = load_encoder(tiny.model, max_length=7, name="mine")

    assert (encoder.name, encoder.max_length) == ("mine", 7)
    with pytest.raises(TypeError, match="maximum"):
        load_encoder(tiny.model, maximum=7)


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning")
def test_an_evaluation_scores_a_chain_that_was_never_saved(tiny, tmp_path, scored_pairs, scoring_here):
    rows = np.random.default_rng(0).normal(size=(300, load_encoder(tiny.model).dimensions)).astype(np.float32)
    chain = Chain(parse_steps("r2")).fit(rows)

    results = evaluate(scored_pairs, [tiny], out=tmp_path / "out", chains={"debias": chain})

    assert {(score.encoder, score.method) for score in results.scores} == {("tiny", "control"), ("tiny", "debias")}
    assert all(score.error is None and score.score is not None for score in results.scores)
    assert (results.decision.comparison.baseline.label, results.decision.comparison.compared.label) == (
        "control",
        "debias",
    )
    assert "debias" in results.decision.sentence
    assert "(20 pairs)" in results.decision.sentence


@pytest.fixture
def scored_pairs(tmp_path, write_data_set):
    """Return a folder with a data set of scored pairs of sentences."""
    pairs = [{"sentence1": f"turn {i}", "sentence2": f"turn {i % 4}", "score": i % 5} for i in range(20)]
    write_data_set(tmp_path / "suite" / "pairs", {"task": "sts"}, {"test.jsonl": pairs})
    return tmp_path / "suite"


def test_the_examples_of_the_functions_run(scoring_here):
    results = doctest.testmod(lathe.training.notebook)
    assert results.attempted > 0 and results.failed == 0
