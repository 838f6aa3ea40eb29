import numpy as np
import pytest

from lathe.transforms import (
    PCA,
    R2,
    Autoencoder,
    Chain,
    GeoPres,
    InputError,
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


def test_certificate_has_exactly_the_documented_keys(chain, heldout, embeddings):
    certificate = certify(chain, heldout, n_fit=400, seed=3, out_of_domain={"pydoc": embeddings(60, 24, seed=6)})
    assert set(certificate) == CONTRACT
    assert set(certificate["out_of_domain"]["pydoc"]) == {"n", *QUALITY}
    for name in ("mean_norm", "isoscore", "bytes_per_vector"):
        assert set(certificate[name]) == {"before", "after"}
    assert (certificate["n_fit"], certificate["n_heldout"], certificate["seed"]) == (400, 120, 3)
    assert certificate["bytes_per_vector"] == {"before": 96, "after": 32}
    assert certificate["out_of_domain"]["pydoc"]["n"] == 60
    assert certificate["warnings"] == []


def test_certificate_takes_the_fitted_rows_from_the_chain_also_after_loading(chain, heldout, embeddings, tmp_path):
    fitted = Chain([PCA(8)]).fit(embeddings(399, 24))
    fitted.save(tmp_path / "chain")
    assert certify(fitted, heldout)["n_fit"] == certify(Chain.load(tmp_path / "chain"), heldout)["n_fit"] == 399
    with pytest.raises(InputError, match="n_fit"):
        certify(fitted.fold(), heldout)


def test_certificate_values_equal_the_metrics_computed_directly(chain, heldout, embeddings):
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
def test_certificate_has_null_and_a_warning_for_metrics_that_need_more_held_out_rows(chain, heldout, n, nulls):
    certificate = certify(chain, heldout[:n], n_fit=400, out_of_domain={"few": heldout[:n]})
    assert {name for name in QUALITY if certificate[name] is None} == nulls
    assert {name for name in QUALITY if certificate["out_of_domain"]["few"][name] is None} == nulls
    assert any(f"{n} held-out rows are too few" in warning for warning in certificate["warnings"]) == bool(nulls)


@pytest.mark.parametrize(("n", "mean", "doubted"), [(400, 0.0, True), (400, 0.5, False), (20, 0.0, True)])
def test_certificate_warns_of_a_mean_direction_within_its_noise(embeddings, heldout, n, mean, doubted):
    chain = Chain([R2()]).fit(embeddings(n, 24, mean=mean, decay=0.0))
    warnings = certify(chain, heldout, n_fit=n)["warnings"]
    assert any("within its noise" in warning for warning in warnings) == doubted


def test_certificate_warns_of_fewer_than_ten_fitted_rows_per_output_dimension(chain, heldout):
    (warning,) = certify(chain, heldout, n_fit=79)["warnings"]
    assert "79 rows are few for 8 dimensions" in warning
    assert certify(chain, heldout, n_fit=80)["warnings"] == []


def test_certificate_lists_given_warnings_before_its_own_without_changing_the_callers_list(chain, heldout):
    said = ["half of the texts were empty"]
    warnings = certify(chain, heldout, n_fit=10, warnings=said)["warnings"]
    assert warnings[0] == said[0]
    assert len(warnings) == 2
    assert said == ["half of the texts were empty"], "the caller's list is the caller's"


def test_certificate_of_a_nested_chain_has_metrics_for_smaller_sizes(nested, heldout):
    certificate = certify(nested, heldout, n_fit=400)
    assert set(certificate) == CONTRACT | {"sizes"}
    assert set(certificate["sizes"]) == {"2", "4", "6"}
    for size, measured in certificate["sizes"].items():
        assert set(measured) == set(QUALITY)
        assert measured["recall_at_10"] == recall_at_k(heldout, nested.transform(heldout, dimensions=int(size)), 10)


def test_certificate_warns_of_outputs_that_never_vary_unless_as_many_inputs_are_constant(embeddings):
    rows = embeddings(300, 24)
    dying = Chain([Autoencoder(8, steps=4, batch=64, learning_rate=1.0)], normalize=False).fit(rows[:200])
    dead = int((dying.transform(rows[200:]).std(axis=0) == 0).sum())
    assert dead > 0
    *_, warning = certify(dying, rows[200:], n_fit=200)["warnings"]
    assert warning == f"outputs that never vary and waste their bytes: {dead} of 8"
    rows[:, 3] = 0
    whole = Chain([R2()]).fit(rows[:200])
    assert certify(whole, rows[200:], n_fit=200)["warnings"] == []


def test_certificate_warns_of_training_whose_loss_was_still_falling_or_diverged(embeddings):
    rows = embeddings(300, 24)
    chain = Chain([GeoPres(8, preset="paper", steps=60, batch=90)]).fit(rows[:200])
    assert chain[0].training_log.still_falling
    (warning,) = certify(chain, rows[200:], n_fit=200)["warnings"]
    assert warning == "the held-out loss of geopres was still falling after 60 steps; train it for longer"
    chain[0].training_log.diverged = True
    (warning,) = certify(chain, rows[200:], n_fit=200)["warnings"]
    assert "diverged after 60 steps" in warning


def test_certificate_of_codes_measures_recall_and_score_errors_of_float_queries_against_codes(embeddings):
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


def test_certificate_warns_of_values_clipped_by_codes(embeddings):
    rows = embeddings(2000, 32)
    chain = Chain(parse_steps("codes:8"), normalize=False).fit(rows)
    far = certify(chain, 20 * embeddings(100, 32, seed=1), n_fit=2000)
    assert far["codes"]["clipped_share"] > 0.01
    assert any("lie beyond 5 standard deviations of the fit" in warning for warning in far["warnings"])
