import json

import numpy as np
import pytest

from transforms import (
    R2,
    Autoencoder,
    Chain,
    GeoPres,
    Moments,
    certify,
    isoscore,
    local_spearman,
    parse_steps,
    positional_stress,
    recall_at_k,
)

QUALITY = ["local_spearman", "recall_at_10", "recall_at_10_rescored_4x", "positional_stress"]
CONTRACT = {
    "n_fit",
    "n_heldout",
    "seed",
    *QUALITY,
    "mean_norm",
    "isoscore",
    "bytes_per_vector",
    "diagnostics",
    "out_of_domain",
    "warnings",
}


@pytest.fixture(scope="module")
def heldout(embeddings):
    return embeddings(120, 24, seed=5)


@pytest.fixture(scope="module")
def chain(embeddings):
    return Chain([R2(), GeoPres(8, steps=3)]).fit(embeddings(400, 24))


@pytest.fixture(scope="module")
def nested(embeddings):
    return Chain([R2(), GeoPres(8, nested=True, steps=3)]).fit(embeddings(400, 24))


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_it_holds_what_the_contract_says_and_nothing_else(chain, heldout, embeddings):
    certificate = certify(chain, heldout, n_fit=400, seed=3, out_of_domain={"pydoc": embeddings(60, 24, seed=6)})
    assert set(certificate) == CONTRACT
    assert set(certificate["out_of_domain"]["pydoc"]) == {"n", *QUALITY}
    for name in ("mean_norm", "isoscore", "bytes_per_vector"):
        assert set(certificate[name]) == {"before", "after"}
    assert (certificate["n_fit"], certificate["n_heldout"], certificate["seed"]) == (400, 120, 3)
    assert certificate["bytes_per_vector"] == {"before": 96, "after": 32}
    assert certificate["out_of_domain"]["pydoc"]["n"] == 60
    assert certificate["warnings"] == []


def test_it_is_json(nested, heldout):
    certificate = certify(nested, heldout, n_fit=400, out_of_domain={"other": heldout[:30]})
    assert json.loads(json.dumps(certificate, allow_nan=False)) == certificate


def test_its_numbers_are_those_of_the_metrics(chain, heldout, embeddings):
    other = embeddings(70, 24, seed=7)
    certificate = certify(chain, heldout, n_fit=400, out_of_domain={"other": other})
    for measured, rows in ((certificate, heldout), (certificate["out_of_domain"]["other"], other)):
        after = chain.transform(rows)
        assert measured["local_spearman"] == local_spearman(rows, after)
        assert measured["recall_at_10"] == recall_at_k(rows, after, 10)
        assert measured["recall_at_10_rescored_4x"] == recall_at_k(rows, after, 10, oversampling=4)
        assert measured["positional_stress"] == positional_stress(rows, after)
    before, after = (Moments.from_vectors(unit(rows)) for rows in (heldout, chain.transform(heldout)))
    assert certificate["isoscore"]["before"] == pytest.approx(isoscore(before), rel=1e-5)
    assert certificate["isoscore"]["after"] == pytest.approx(isoscore(after), rel=1e-5)
    assert certificate["mean_norm"]["before"] == pytest.approx(before.mean_norm(), rel=1e-5)
    assert certificate["mean_norm"]["after"] == pytest.approx(after.mean_norm(), rel=1e-5)


def test_it_shows_that_debiasing_took_the_mean_away(chain, heldout):
    mean_norm = certify(chain, heldout, n_fit=400)["mean_norm"]
    assert mean_norm["after"] < 0.5 * mean_norm["before"]


@pytest.mark.parametrize(
    ("n", "nulls"),
    [
        (1, set(QUALITY)),
        (2, {"local_spearman", "recall_at_10", "recall_at_10_rescored_4x"}),
        (3, {"recall_at_10", "recall_at_10_rescored_4x"}),
        (10, {"recall_at_10", "recall_at_10_rescored_4x"}),
        (11, {"recall_at_10_rescored_4x"}),
        (40, {"recall_at_10_rescored_4x"}),
        (41, set()),
    ],
)
def test_what_too_few_rows_do_not_allow_to_measure_is_null_with_a_warning(chain, heldout, n, nulls):
    certificate = certify(chain, heldout[:n], n_fit=400, out_of_domain={"few": heldout[:n]})
    assert {name for name in QUALITY if certificate[name] is None} == nulls
    assert {name for name in QUALITY if certificate["out_of_domain"]["few"][name] is None} == nulls
    assert any(f"{n} held-out rows are too few" in warning for warning in certificate["warnings"]) == bool(nulls)


@pytest.mark.parametrize(("n", "mean", "doubted"), [(400, 0.0, True), (400, 0.5, False), (20, 0.0, True)])
def test_a_mean_direction_that_may_be_chance_is_doubted(embeddings, heldout, n, mean, doubted):
    chain = Chain([R2()]).fit(embeddings(n, 24, mean=mean, decay=0.0))
    warnings = certify(chain, heldout, n_fit=n)["warnings"]
    assert any("within its noise" in warning for warning in warnings) == doubted


def test_a_map_fitted_on_few_rows_is_doubted(chain, heldout):
    (warning,) = certify(chain, heldout, n_fit=79)["warnings"]
    assert "79 rows are few for 8 dimensions" in warning
    assert certify(chain, heldout, n_fit=80)["warnings"] == []


def test_what_the_fit_had_to_say_comes_first(chain, heldout):
    said = ["half of the texts were empty"]
    warnings = certify(chain, heldout, n_fit=10, warnings=said)["warnings"]
    assert warnings[0] == said[0]
    assert len(warnings) == 2
    assert said == ["half of the texts were empty"], "the caller's list is the caller's"


def test_a_nested_chain_is_measured_at_smaller_sizes_too(nested, heldout):
    certificate = certify(nested, heldout, n_fit=400)
    assert set(certificate) == CONTRACT | {"sizes"}
    assert set(certificate["sizes"]) == {"2", "4", "6"}
    for size, measured in certificate["sizes"].items():
        assert set(measured) == set(QUALITY)
        assert measured["recall_at_10"] == recall_at_k(heldout, nested.transform(heldout, dimensions=int(size)), 10)


def test_a_nested_chain_of_one_dimension_has_no_smaller_sizes(embeddings, heldout):
    chain = Chain([GeoPres(1, nested=True, steps=1)]).fit(embeddings(100, 24))
    assert certify(chain, heldout, n_fit=100)["sizes"] == {}


def test_held_out_rows_may_lie_on_disk_in_any_float(chain, heldout, tmp_path, torch_warns_always):
    expected = certify(chain, heldout, n_fit=400)
    for dtype in (np.float32, np.float64):
        np.save(tmp_path / "heldout.npy", heldout.astype(dtype))
        on_disk = np.load(tmp_path / "heldout.npy", mmap_mode="r")
        certificate = certify(chain, on_disk, n_fit=400, out_of_domain={"same": on_disk})
        for name in QUALITY:
            assert certificate[name] == pytest.approx(expected[name], rel=1e-5)
            assert certificate["out_of_domain"]["same"][name] == pytest.approx(expected[name], rel=1e-5)


def test_outputs_that_do_not_vary_are_warned_of_unless_the_inputs_had_as_many(embeddings):
    rows = embeddings(300, 24)
    dying = Chain([Autoencoder(8, steps=4, batch=64, learning_rate=1.0)], normalize=False).fit(rows[:200])
    dead = int((dying.transform(rows[200:]).std(axis=0) == 0).sum())
    assert dead > 0
    *_, warning = certify(dying, rows[200:], n_fit=200)["warnings"]
    assert warning == f"outputs that never vary and waste their bytes: {dead} of 8"
    rows[:, 3] = 0
    whole = Chain([R2()]).fit(rows[:200])
    assert certify(whole, rows[200:], n_fit=200)["warnings"] == []


def test_a_training_that_could_have_gone_on_or_went_astray_is_warned_of(embeddings):
    rows = embeddings(300, 24)
    chain = Chain([GeoPres(8, preset="paper", steps=60, batch=90)]).fit(rows[:200])
    assert chain[0].training_log.still_falling
    (warning,) = certify(chain, rows[200:], n_fit=200)["warnings"]
    assert warning == "the held-out loss of geopres was still falling after 60 steps; train it for longer"
    chain[0].training_log.diverged = True
    (warning,) = certify(chain, rows[200:], n_fit=200)["warnings"]
    assert "diverged after 60 steps" in warning


def test_the_certificate_of_codes_measures_float_queries_in_codes(embeddings):
    rows, heldout = embeddings(2000, 32), embeddings(300, 32, seed=1)
    chain = Chain(parse_steps("r2,codes:8")).fit(rows)
    found = certify(chain, heldout, n_fit=2000, out_of_domain={"other": embeddings(120, 32, seed=2)})
    queries, decoded = chain.transform_queries(heldout), chain.floats(heldout)
    scores, exact = queries @ decoded.T, heldout / np.linalg.norm(heldout, axis=1, keepdims=True)
    cosines = exact @ exact.T
    for matrix in (scores, cosines):
        np.fill_diagonal(matrix, -9)
    nearest, answers = np.argsort(-cosines, axis=1)[:, :10], np.argsort(-scores, axis=1)
    for key, count in (("recall_at_10", 10), ("recall_at_10_rescored_4x", 40)):
        expected = np.mean([np.isin(n, a[:count]).mean() for n, a in zip(nearest, answers, strict=True)])
        assert found[key] == pytest.approx(expected, abs=1e-3)
    errors = (scores - queries @ queries.T)[~np.eye(300, dtype=bool)]
    assert found["codes"]["score_bias"] == pytest.approx(errors.mean(), abs=1e-6)
    assert found["codes"]["score_variance"] == pytest.approx(errors.var(), rel=1e-3)
    assert (found["codes"]["bytes"], found["bytes_per_vector"]) == (8, {"before": 128, "after": 8})
    assert sum(int(bits) * count for bits, count in found["codes"]["bits"].items()) == 64
    assert found["out_of_domain"]["other"]["recall_at_10"] > 0.2
    assert not any("standard deviations" in warning for warning in found["warnings"])


def test_a_certificate_warns_of_values_that_codes_clip(embeddings):
    rows = embeddings(2000, 32)
    chain = Chain(parse_steps("codes:8"), normalize=False).fit(rows)
    far = certify(chain, 20 * embeddings(100, 32, seed=1), n_fit=2000)
    assert far["codes"]["clipped_share"] > 0.01
    assert any("lie beyond 5 standard deviations of the fit" in warning for warning in far["warnings"])
