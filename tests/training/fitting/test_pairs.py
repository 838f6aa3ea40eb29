"""Fits of steps that learn from queries and their relevant documents, and certificates that measure by them."""

import numpy as np
import pytest

from lathe.training.errors import FitError, SourceError
from lathe.training.fitting import out_of_domain
from lathe.training.fitting.fit import fit_new_chain
from lathe.training.fitting.out_of_domain import sample_texts
from lathe.training.fitting.pairs import read_pairs, split_pairs
from lathe.training.fitting.requests import NewFit
from lathe.transforms.chain import Chain
from lathe.transforms.progress import no_progress
from tests.training.fitting.numbered import ADAPTER, NumberEncoder, pairs_of, write


@pytest.fixture
def documents(tmp_path):
    return write(tmp_path / "documents.jsonl", [{"text": f"document {n}"} for n in range(600)])


@pytest.fixture
def pairs(tmp_path):
    return write(tmp_path / "pairs.jsonl", pairs_of(range(400)))


@pytest.fixture
def fit(new_workspace):
    """Return a function that fits a chain on a source and pairs of query and document."""

    def run(source, steps=ADAPTER, encoder=None, **request):
        asked = NewFit(name="adapted", steps=steps, source=source, **request)
        with fit_new_chain(asked, encoder or NumberEncoder(), new_workspace, no_progress) as fitted:
            return fitted

    return run


def test_an_adapter_is_fitted_on_pairs_and_certified_on_other_queries(tmp_path, documents, pairs, fit):
    encoder = NumberEncoder()
    gates = {"relevance.ndcg_at_10.gain": 0.02}
    fitted = fit(documents, encoder=encoder, pairs=pairs, gates=gates)
    assert fitted.failed_gates == []
    relevance = fitted.certificate["relevance"]
    assert (relevance["queries"], relevance["documents"]) == (80, 600)
    ndcg = relevance["ndcg_at_10"]
    assert ndcg["gain"] > ndcg["ci95"] > 0
    assert ndcg["after"] - ndcg["before"] == pytest.approx(ndcg["gain"])
    assert set(relevance["out_of_domain"]) == {"pydoc"}
    assert relevance["out_of_domain"]["pydoc"]["queries"] > 30
    assert int(fitted.chain.transforms[0].query_count) == 320
    assert {prompt for prompt, texts in encoder.asked if texts[0].startswith("query")} == {"query"}
    assert sum("document 5" in texts for _, texts in encoder.asked) == 1, "rows of the source are not encoded again"
    assert fitted.certificate["local_spearman"] == pytest.approx(1), "documents stay as they are"
    fitted.chain.save(tmp_path / "saved")
    loaded = Chain.load(tmp_path / "saved")
    assert loaded == fitted.chain and loaded.two_sided
    assert loaded.metadata["certificate"]["relevance"]["queries"] == 80


def test_pairs_may_have_documents_that_the_source_lacks_and_other_fields(tmp_path, documents, fit):
    rows = [{"anchor": f"query {n}", "positive": f"document {n}"} for n in range(500, 900)]
    written = write(tmp_path / "pairs.jsonl", rows)
    relevance = fit(documents, pairs=written).certificate["relevance"]
    assert relevance["documents"] == 900
    named = write(tmp_path / "named.jsonl", [{"q": "a b", "d": "c"}])
    assert read_pairs(f"{named}#q,d").by_query == {"a b": ["c"]}


def test_test_pairs_certify_a_chain_of_any_steps(tmp_path, documents, fit):
    test = write(tmp_path / "test.jsonl", pairs_of(range(50)))
    certificate = fit(documents, [{"kind": "pca", "dimensions": 4}], test_pairs=test).certificate
    relevance = certificate["relevance"]
    assert relevance["queries"] == 50
    assert relevance["ndcg_at_10"]["gain"] < 0
    assert any("no gain that can be told from chance" in warning for warning in certificate["warnings"])


def test_pairs_of_one_query_count_as_one_query_and_repeated_pairs_once(tmp_path, documents, fit):
    rows = pairs_of(range(400)) + pairs_of(range(3)) + [{"query": "QUERY  7", "document": "document 8"}]
    found = read_pairs(write(tmp_path / "pairs.jsonl", rows))
    assert len(found.by_query) == 400
    assert found.by_query["query 7"] == ["document 7", "document 8"]
    assert found.repeated == 3
    certificate = fit(documents, pairs=str(tmp_path / "pairs.jsonl")).certificate
    assert "3 pairs repeat others and count once" in certificate["warnings"]


def test_splits_have_no_query_in_common_and_depend_on_the_seed(tmp_path):
    found = read_pairs(write(tmp_path / "pairs.jsonl", pairs_of(range(400))))
    fit_side, test_side = split_pairs(found, 0)
    assert not set(fit_side.by_query) & set(test_side.by_query)
    assert len(fit_side.by_query) == 320
    assert split_pairs(found, 0) == (fit_side, test_side)
    assert split_pairs(found, 1) != (fit_side, test_side)


@pytest.mark.parametrize(
    ("option", "count", "reason"),
    [
        ("pairs", 30, "the pairs have 30 different queries: a fifth of them"),
        ("pairs", 240, "at least 200 different queries .* these are 192"),
        ("test_pairs", 29, "the test pairs have 29 different queries; give at least 30"),
    ],
)
def test_too_few_pairs_are_refused(option, count, reason, tmp_path, documents, fit):
    written = write(tmp_path / "few.jsonl", pairs_of(range(count)))
    steps = {"steps": [{"kind": "mc"}]} if option == "test_pairs" else {}
    with pytest.raises((FitError, ValueError), match=reason):
        fit(documents, **steps, **{option: written})


def test_a_step_without_pairs_is_refused_before_anything_is_encoded(documents, fit):
    encoder = NumberEncoder()
    with pytest.raises(FitError, match="query_adapter is fitted on queries and their relevant documents: name a file"):
        fit(documents, encoder=encoder)
    assert not encoder.asked


def test_files_that_hold_no_pairs_are_refused(tmp_path):
    with pytest.raises(FitError, match="holds no pair"):
        read_pairs(write(tmp_path / "blank.jsonl", [{"query": " ", "document": "x"}]))
    with pytest.raises(SourceError, match="positive|anchor"):
        read_pairs(write(tmp_path / "other.jsonl", [{"text": "x"}]))
    with pytest.raises(FitError, match="two fields"):
        read_pairs(f"{tmp_path / 'blank.jsonl'}#query")


def test_pairs_need_an_encoder(tmp_path, pairs):
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(100, 16)).astype(np.float32))
    asked = NewFit(name="adapted", steps=ADAPTER, source=str(tmp_path / "rows.npy"), pairs=pairs)
    with (
        pytest.raises(FitError, match="the source has no encoder: name one"),
        fit_new_chain(asked, None, tmp_path / "work", no_progress),
    ):
        pass


def test_out_of_domain_texts_are_read_once_for_their_geometry_and_their_halves(
    tmp_path, documents, pairs, monkeypatch, fit
):
    texts = [f"word{n} follows word{n + 1}, " * 6 + "and so on until the very end" for n in range(60)]
    other = write(tmp_path / "other.jsonl", [{"text": text} for text in texts])
    samples = []
    monkeypatch.setattr(
        out_of_domain, "sample_texts", lambda source: samples.append(source.written) or sample_texts(source)
    )
    certificate = fit(documents, pairs=pairs, out_of_domain={"other": other}).certificate
    assert certificate["relevance"]["out_of_domain"]["other"]["queries"] == 60
    assert certificate["out_of_domain"]["other"]["n"] == 60
    assert samples == [other]
