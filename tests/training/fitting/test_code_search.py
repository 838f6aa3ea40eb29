import numpy as np
import pytest
from pydantic import ValidationError

from lathe.training.errors import FitError
from lathe.training.fitting import code_search
from lathe.training.fitting.code_search import read_queries, search_codes
from lathe.training.fitting.fit import fit_new_chain
from lathe.training.fitting.requests import NewFit
from lathe.training.measures import TextHalves
from lathe.transforms import Chain, StepError, parse_steps
from lathe.transforms.progress import no_progress

WIDTH = 48


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return unit(rng.normal(size=(3000, WIDTH)) * np.arange(1, WIDTH + 1) ** -0.5 + 0.2)


def fit(source, encoder, workspace, **request):
    asked = NewFit(name="name", source=str(source), **request)
    with fit_new_chain(asked, encoder, workspace, no_progress) as fitted:
        return fitted


def sample_halves_with_topics_in(columns, rows, noise=0.3):
    """Sample held-out halves of texts that share their topic in some columns and have noise in the others."""
    rng = np.random.default_rng(1)
    topic = 0.6 * rng.normal(size=(400, len(columns)))
    sides = []
    for _ in range(2):
        side = noise * rng.normal(size=(400, WIDTH)) * np.arange(1, WIDTH + 1) ** -0.5 + 0.2
        side[:, columns] += topic
        sides.append(unit(side))
    return TextHalves(*sides)


def test_codes_stay_unless_others_are_ahead_by_more_than_their_interval(rows):
    """Codebooks are tried from 2,560 rows on."""
    halves = sample_halves_with_topics_in([0, 1], rows)
    for count, place in ((2500, 1), (3000, 3)):
        chain = Chain(parse_steps("codes:6")).fit(rows[:count])
        found = search_codes(chain, rows[:count], halves, rows[:300], None, no_progress)
        tried = [("codes", 0, None), ("codes", 0.5, None), ("codes", 0, 1), ("product_codes", 0.5, None)]
        assert [(trial.kind, trial.weighting, trial.bits) for trial in found.trials] == tried[: 3 + place // 3]
        assert 0 < found.trials[place].ahead < found.trials[place].ci95
        chosen = found.chain.quantizer
        assert chosen.kind == "codes" and (place == 3 or chosen.weighting == 0)
        assert found.trials[0].ahead == found.trials[0].ci95 == chain.quantizer.weighting == 0


def test_weighting_by_queries_is_chosen_if_topics_lie_in_few_directions(rows):
    """The chosen chain equals one fitted with the chosen weighting."""
    rng = np.random.default_rng(3)
    queries = np.zeros((2000, WIDTH))
    queries[:, 30:34] = rng.normal(size=(2000, 4))
    queries = unit(queries + 0.02 * rng.normal(size=queries.shape))
    chain = Chain(parse_steps("codes:4,restore_norm=false")).fit(rows[:2500], queries=queries)
    halves = sample_halves_with_topics_in([30, 31, 32, 33], rows, noise=0.05)
    found = search_codes(chain, rows[:2500], halves, rows[2500:], queries, no_progress).chain
    assert found.quantizer.weighting == 0.5, "bits elsewhere do not tell topics"
    assert int(found.quantizer.query_count) == 2000
    again = Chain(parse_steps("codes:4,restore_norm=false,weighting=0.5")).fit(rows[:2500], queries=queries)
    np.testing.assert_allclose(found.quantizer.decoder, again.quantizer.decoder, atol=1e-5)


@pytest.mark.parametrize(("octets", "weighting"), [(11, 0.0), (12, 0.5)])
def test_the_default_weighting_is_one_half_from_two_bits_a_dimension_on(rows, octets, weighting):
    chain = Chain(parse_steps(f"codes:{octets}")).fit(rows[:2500])
    found = search_codes(chain, rows[:2500], "no texts", rows[2500:], None, no_progress)
    assert found.chain.quantizer.weighting == weighting
    assert found.describe()["chosen_by"] == "default" and set(found.not_tried) == {"weightings", "product_codes"}


@pytest.fixture(scope="module")
def heavy_tailed():
    """Return rows to fit on, held-out rows, and halves near each other, far from the normal that grids are made for."""
    rng = np.random.default_rng(5)
    every = unit(rng.normal(size=(3600, WIDTH)) ** 3 * np.arange(1, WIDTH + 1) ** -0.5)
    halves = [unit(every[3000:3400] + 0.1 * rng.normal(size=(400, WIDTH))) for _ in range(2)]
    return every[:3000], every[3400:], TextHalves(*halves)


@pytest.mark.parametrize(
    ("given", "queries", "measure"),
    [
        (lambda halves: halves, lambda halves: None, "split-half retrieval"),
        (lambda halves: "no texts", lambda halves: None, "neighbours found by held-out rows"),
        (lambda halves: "no texts", lambda halves: halves.first, "neighbours found by queries"),
    ],
)
def test_learned_codebooks_are_chosen_if_they_retrieve_more_beyond_the_interval(
    heavy_tailed, monkeypatch, given, queries, measure
):
    """They are learned from some of the rows to be tried, and from all of them to be used."""
    rows, heldout, halves = heavy_tailed
    monkeypatch.setattr(code_search, "MAX_TRIAL_ROWS", 2800)
    chain = Chain(parse_steps("codes:4")).fit(rows)
    found = search_codes(chain, rows, given(halves), heldout, queries(halves), no_progress)
    assert found.chosen_by == measure
    trial = found.trials[-1]
    weighting = found.chain.quantizer.weighting
    assert (trial.kind, trial.rows, trial.weighting) == ("product_codes", 2800, weighting)
    assert trial.ahead > trial.ci95 > 0
    assert any(trial.ahead == pytest.approx(trial.retrieval - other.retrieval) for other in found.trials[:-1])
    expected = Chain(parse_steps(f"product_codes:4,weighting={weighting}")).fit(rows)
    np.testing.assert_array_equal(found.chain.transform(heldout), expected.transform(heldout))
    assert "product_codes" not in found.not_tried and chain.quantizer.kind == "codes"


@pytest.mark.parametrize(
    ("count", "steps", "reason"),
    [
        (2000, "codes:6", "its codebooks need 2,560 rows to fit on, there are 2,000"),
        (3000, "codes:48", "give every coordinate a byte of its own"),
    ],
)
def test_learned_codebooks_that_cannot_be_had_are_not_tried_for_a_reason(rows, count, steps, reason):
    chain = Chain(parse_steps(steps)).fit(rows[:count])
    halves = sample_halves_with_topics_in([0, 1], rows)
    found = search_codes(chain, rows[:count], halves, rows[-200:], None, no_progress)
    assert reason in found.not_tried["product_codes"]
    assert found.chain.quantizer.kind == "codes"


def test_a_byte_budget_adds_a_codes_step_and_the_certificate_names_how_it_was_chosen(rows, tmp_path):
    np.save(tmp_path / "rows.npy", rows)
    fitted = fit(tmp_path / "rows.npy", None, tmp_path, steps=[{"kind": "r2"}], bytes=12)
    assert [step.kind for step in fitted.chain.transforms] == ["r2", "codes"]
    found = fitted.certificate["codes"]
    assert (found["bytes"], found["chosen_by"], found["tried"]) == (12, "default", [])
    assert set(found["not_tried"]) == {"weightings", "product_codes"}
    assert "source holds vectors" in found["not_tried"]["weightings"]
    alone = fit(tmp_path / "rows.npy", None, tmp_path, steps=[], bytes=12)
    assert [step.kind for step in alone.chain.transforms] == ["codes"]
    floats = fit(tmp_path / "rows.npy", None, tmp_path, steps=[{"kind": "r2"}])
    assert "codes" not in floats.certificate


def test_fit_refuses_byte_budgets_and_queries_that_the_steps_cannot_use(rows, tmp_path):
    np.save(tmp_path / "rows.npy", rows)
    with pytest.raises(StepError, match="bytes"):
        fit(tmp_path / "rows.npy", None, tmp_path, steps=[], bytes=49)
    with pytest.raises(ValidationError, match="bytes"):
        fit(tmp_path / "rows.npy", None, tmp_path, steps=[], bytes=0)
    with pytest.raises(StepError, match="int8 outputs codes, which codes cannot follow"):
        fit(tmp_path / "rows.npy", None, tmp_path, steps=[{"kind": "int8"}], bytes=8)
    np.save(tmp_path / "queries.npy", rows[:20])
    with pytest.raises(FitError, match="no step is fitted on queries"):
        fit(tmp_path / "rows.npy", None, tmp_path, steps=[{"kind": "r2"}], queries=str(tmp_path / "queries.npy"))


def test_read_queries_takes_vectors_of_the_fitted_dimensions_and_texts_only_with_an_encoder(rows, tmp_path):
    np.save(tmp_path / "queries.npy", rows[:20])
    np.testing.assert_array_equal(read_queries(str(tmp_path / "queries.npy"), None, WIDTH), rows[:20])
    with pytest.raises(FitError, match="queries have 48 dimensions, and the fitted rows have 32"):
        read_queries(str(tmp_path / "queries.npy"), None, 32)
    (tmp_path / "queries.txt").write_text("what is a codec\n")
    with pytest.raises(FitError, match="the fit has no encoder"):
        read_queries(str(tmp_path / "queries.txt"), None, WIDTH)
    fitted = fit(
        tmp_path / "queries.npy",
        None,
        tmp_path,
        steps=[{"kind": "codes", "bytes": 4, "weighting": 0.5}],
        queries=str(tmp_path / "queries.npy"),
    )
    assert fitted.certificate["codes"]["query_count"] == 20


def test_fit_of_texts_to_a_byte_budget_tries_the_weightings_by_split_half_retrieval(
    tmp_path, brief_encoder, workspace, paragraphs
):
    (tmp_path / "texts.txt").write_text("\n".join(" ".join(text.split()[:24]) for text in paragraphs))
    fitted = fit(tmp_path / "texts.txt", brief_encoder, workspace, steps=[], bytes=24)
    found = fitted.certificate["codes"]
    assert found["chosen_by"] == "split-half retrieval"
    assert [trial["weighting"] for trial in found["tried"]] == [0.0, 0.5, 0.0]
    assert all(10 < trial["retrieval"] < 100 for trial in found["tried"])
    assert fitted.chain.quantizer.weighting == found["weighting"]
    assert found["kind"] == "codes" and "2,560 rows" in found["not_tried"]["product_codes"]
