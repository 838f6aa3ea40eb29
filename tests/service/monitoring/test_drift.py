"""Drift: live rows are compared with those a chain was fitted on, and stale chains are warned of and refitted."""

import re

import numpy as np
import pytest

from lathe.service.chains.registry import STARTERS, Registry
from lathe.service.encoders.live_vectors import ObservedVectors
from lathe.service.monitoring.drift import ROWS_PER_REQUEST, SAMPLED_PART, Drift, Pace, Tally, Window
from lathe.service.publishing.context import PublishContext
from lathe.service.publishing.fits import run_fit
from lathe.training.fitting.requests import NewFit
from lathe.transforms import parse_steps
from lathe.transforms.artifact import DISTRIBUTION
from lathe.transforms.progress import no_progress

ENCODER = "all-MiniLM-L6-v2"
WIDTH = 24
"""Of vectors that no encoder made, which cost no time to make."""


def rows_like(count, seed, mean=0.5, turned=False):
    """Draw vectors `(count, WIDTH)` of one distribution. Turned ones vary in other directions."""
    space = np.random.default_rng(0)
    rotation, _ = np.linalg.qr(space.normal(size=(WIDTH, WIDTH)))
    spread = np.arange(1, WIDTH + 1) ** -1.0
    rows = np.random.default_rng(seed).normal(size=(count, WIDTH)) * (spread[::-1] if turned else spread) @ rotation
    return (rows + mean * rotation[-1]).astype(np.float32)


ALL = Pace(rows_a_second=1e9)
"""Rows are looked at however fast they come, as tests send in a second what would come in minutes."""


@pytest.fixture(scope="module")
def app(start_app, new_home):
    """Start an app for this file with drift monitoring and the smallest window."""
    with start_app(home=new_home(), drift_window=1000) as app:
        app.services.drift.pace = ALL
        yield app


def fit(app, name, rows, steps="r2,pca:8", encoder=None, **request):
    """Fit a chain on vectors in this process, as a job would. They are those of an encoder, or of none."""
    path = app.settings.home / f"{name}.npy"
    np.save(path, rows)
    context = PublishContext.open(app.settings, "lathe fit", encoders=())
    asked = NewFit(name=name, steps=[step.spec() for step in parse_steps(steps)], source=str(path), **request)
    return run_fit(asked, context, no_progress, encoder=encoder)


@pytest.fixture(scope="module")
def fitted(app):
    """Fit two versions of a chain on vectors without an encoder. The second is not live."""
    for steps in ("r2,pca:8", "mc,pca:8"):
        fit(app, "mine", rows_like(2000, 1), steps)
    return app


def reduce(app, rows, chain="mine"):
    """Send rows through a chain, as many per request as are sampled."""
    for start in range(0, len(rows), ROWS_PER_REQUEST):
        body = {"chain": chain, "vectors": rows[start : start + ROWS_PER_REQUEST].tolist()}
        answer = app.client.post("/reduce", json=body)
        assert answer.status_code == 200, answer.text


def observe(app, rows, ref="mine"):
    """Let an app observe rows as if they came in requests, which would take seconds."""
    loaded = app.services.registry.load(ref)
    for number, start in enumerate(range(0, len(rows), ROWS_PER_REQUEST)):
        app.services.drift.observe(ObservedVectors(None, loaded, rows[start : start + ROWS_PER_REQUEST]))
        if number % 32 == 0:  # the window begins, or is evaluated, in another thread
            settle(app)


def report(app, ref="mine", encoder=None):
    """Return the drift report of a version, and its figures for an encoder, once all requests are observed."""
    settle(app)
    found = app.client.get(f"/chains/{ref}/drift")
    assert found.status_code == 200, found.text
    return found.json(), next((one for one in found.json()["encoders"] if one["encoder"] == encoder), None)


def settle(app):
    """Wait until the vectors of all earlier requests were observed."""
    live_vectors = app.services.embedder.live_vectors
    live_vectors.stop()
    live_vectors.start()


def metric(app, name, **labels):
    """Return a gauge's value, or None if it has none for these labels."""
    wanted = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    found = re.search(rf"^{name}{{{wanted}}} (\S+)$", app.client.get("/metrics").text, re.MULTILINE)
    return found and float(found[1])


# Figures


def test_drift_is_unknown_before_any_request_and_reported_separately_for_each_version(fitted):
    registry = fitted.services.registry
    for _ in range(2):
        loaded = registry.load("mine@1")
        registry.publish(loaded.chain, "versions", None, distribution=loaded.fit_distribution)
    said, figures = report(fitted, "versions@2")
    assert (said["chain"], said["stale"], said["unknown"], figures) == ("versions@2", None, None, None)
    assert fitted.client.get("/chains/versions@2").json()["stale"] is None
    observe(fitted, rows_like(100, 7), "versions@1")
    observe(fitted, rows_like(100, 7, turned=True), "versions@2")
    one, two = (report(fitted, ref)[1]["tenths"][-1] for ref in ("versions@1", "versions@2"))
    assert one != two


@pytest.mark.parametrize("step", ["codes:8", "int8"])
def test_clipped_share_rises_with_values_beyond_the_range_of_the_codes(app, step):
    name = f"clipped-{step[:4]}"
    fit(app, name, rows_like(1000, 1), step)
    observe(app, rows_like(200, 2), name)
    _, same = report(app, name)
    assert 0 <= same["clipped"] < 0.01
    observe(app, rows_like(200, 3, turned=True), name)
    _, other = report(app, name)
    assert other["clipped"] > 0.02
    assert metric(app, "lathe_drift_clipped", encoder="none", chain=f"{name}@1") == pytest.approx(other["clipped"])


def test_out_of_domain_is_near_half_for_similar_rows_rises_for_others_and_falls_again(fitted):
    """Other rows make the version stale in the report, the metrics, the chain and the health warnings."""
    observe(fitted, rows_like(2000, 2))
    said, same = report(fitted)
    assert said["unknown"] is None and said["stale"] is False and said["chain"] == "mine@1"
    assert 1000 <= same["rows"] <= 2000
    assert abs(same["out_of_domain"] - 0.5) < 4 * same["noise"] and 0.003 < same["noise"] < 0.02
    assert same["mean_cosine"] > 0.99 and same["odd_norms"] < 0.02 and same["clipped"] is None
    assert same["outside"]["live"] == pytest.approx(same["outside"]["fitted"], rel=0.1)
    np.testing.assert_allclose(same["tenths"], 0.1, atol=0.04)
    assert fitted.client.get("/chains/mine").json()["stale"] is False

    observe(fitted, rows_like(2500, 3, turned=True))
    said, other = report(fitted)
    assert other["out_of_domain"] > 0.95 and other["stale"] and said["stale"]
    assert other["outside"]["live"] > 2 * other["outside"]["fitted"]
    assert metric(fitted, "lathe_drift_stale", encoder="none", chain="mine@1") == 1
    assert metric(fitted, "lathe_drift_out_of_domain", encoder="none", chain="mine@1") > 0.95
    assert fitted.client.get("/chains/mine").json()["stale"] is True
    assert any("mine@1 is stale" in warning for warning in fitted.client.get("/health").json()["warnings"])
    assert next(c for c in fitted.client.get("/chains").json() if c["name"] == "mine")["stale"] is True

    observe(fitted, rows_like(2500, 4))
    said, again = report(fitted)
    assert again["out_of_domain"] < 0.55 and said["stale"] is False
    assert again["rows"] <= 2000  # what is older than two windows is gone
    assert fitted.client.get("/health").json()["warnings"] == []


def test_drift_reports_a_shifted_mean_and_outlier_norms(fitted):
    """Rows of extreme norms are counted and left out of the mean."""
    rows = rows_like(1500, 5, mean=-0.5)
    observe(fitted, rows, "mine@2")
    _, figures = report(fitted, "mine@2")
    assert figures["mean_cosine"] < -0.9
    assert figures["mean_norm"]["live"] == pytest.approx(np.linalg.norm(rows.mean(axis=0)), rel=0.1)
    assert figures["mean_norm"]["fitted"] == pytest.approx(0.5, abs=0.05)
    observe(fitted, rows_like(1500, 6) * 50, "mine@2")
    _, figures = report(fitted, "mine@2")
    assert figures["odd_norms"] > 0.5
    observe(fitted, np.full((40, WIDTH), 3e37, np.float32), "mine@2")
    _, figures = report(fitted, "mine@2")
    assert figures["mean_norm"]["live"] < 1000  # rows that would outweigh all others are counted, not summed
    assert all(value == value for value in figures["mean_norm"].values())


def test_an_eighth_of_a_large_requests_rows_is_sampled_and_one_request_makes_no_chain_stale(fitted):
    rows = rows_like(5000, 8, turned=True)
    loaded = fitted.services.registry.load("mine")
    window = Window(None, loaded, loaded.fit_distribution, 1000)
    window.queue_sample(rows)
    tally = window.evaluate()
    assert (tally.rows, tally.requests, tally.standard_error) == (5000 // SAMPLED_PART, 1, None)
    assert not fitted.services.drift.exceeds_threshold(tally)


def test_standard_error_treats_the_rows_of_a_request_as_one_cluster(fitted):
    loaded = fitted.services.registry.load("mine")
    rows = rows_like(2000, 9)
    order = np.argsort(loaded.fit_distribution.gaussian.score(loaded.fit_distribution.gaussian.standardize(rows)))
    sorted_rows = Tally.from_requests(loaded.fit_distribution, None, np.split(rows[order], 100))
    mixed = Tally.from_requests(loaded.fit_distribution, None, np.split(rows, 100))
    assert mixed.standard_error == pytest.approx(0.29 / np.sqrt(2000), rel=0.2)
    assert sorted_rows.standard_error > 3 * mixed.standard_error
    assert sorted_rows.out_of_domain == pytest.approx(mixed.out_of_domain)


def test_rows_of_other_dimensions_are_ignored_and_the_least_recently_used_window_is_dropped(fitted):
    drift = Drift(True, 1000, 0.8, fitted.services.registry, lambda work: work() is None, max_windows=3, pace=ALL)
    loaded = fitted.services.registry.load("mine")
    drift.observe(ObservedVectors(None, loaded, np.ones((5, WIDTH + 1), np.float32)))  # of other dimensions
    assert list(drift.evaluate_all()) == []
    for number in (1, 2, 3, 1, 4):
        drift.observe(ObservedVectors(f"encoder {number}", loaded, rows_like(5, 0)))
    assert {window.encoder for window in drift.windows.values()} == {"encoder 3", "encoder 1", "encoder 4"}


# Texts


def embed(app, texts, chain):
    """Embed texts through a chain."""
    answer = app.client.post("/embed", json={"inputs": texts, "chain": chain})
    assert answer.status_code == 200, answer.text


def test_vectors_from_the_cache_are_counted_and_those_sent_to_reduce_apart_from_embedded_texts(app, sentences):
    for times in (1, 2):
        embed(app, sentences, "debias")
        assert report(app, "debias", ENCODER)[1]["rows"] == 6 * times
    raw = app.client.post("/embed", json={"inputs": sentences}).json()
    reduce(app, np.array(raw, np.float32), "debias")
    assert report(app, "debias")[1]["rows"] == len(raw)
    assert report(app, "debias", ENCODER)[1]["rows"] == 12


# What is not known


def test_drift_of_an_unknown_chain_is_answered_404(fitted):
    for ref in ("nobody", "mine@99"):
        answer = fitted.client.get(f"/chains/{ref}/drift")
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("how", ["none", "altered", "missing"])
def test_a_chain_without_a_usable_fit_distribution_serves_and_its_drift_is_unknown(fitted, how):
    registry = fitted.services.registry
    loaded = registry.load("mine@1")
    distribution = None if how == "none" else loaded.fit_distribution
    version, _ = registry.publish(loaded.chain, "frail", None, distribution=distribution)
    path = registry.root / "frail" / str(version) / DISTRIBUTION
    if how == "missing":
        path.unlink()
    elif how == "altered":
        path.write_bytes(path.read_bytes()[:-4] + b"\x00" * 4)
    reduce(fitted, rows_like(8, 1), f"frail@{version}")
    said, _ = report(fitted, f"frail@{version}")
    assert ("without the distribution of its rows" if how == "none" else "the distribution of its rows") in said[
        "unknown"
    ]
    assert said["encoders"] == [] and said["stale"] is None


def test_with_drift_off_the_report_says_it_and_has_no_figures(start_app, fitted):
    with start_app(home=fitted.settings.home, drift=False, indexes_only=True) as off:
        reduce(off, rows_like(8, 1))
        said, _ = report(off)
        assert said["unknown"] == "LATHE_DRIFT is off" and said["encoders"] == []
        assert metric(off, "lathe_drift_rows", encoder="none", chain="mine@1") is None


def test_after_a_restart_windows_are_empty_and_the_fit_distribution_is_the_same(start_app, fitted):
    reduce(fitted, rows_like(40, 1))
    _, before = report(fitted)
    with start_app(home=fitted.settings.home, indexes_only=True) as again:
        assert report(again)[1] is None
        reduce(again, rows_like(40, 1))
        _, figures = report(again)
    assert figures["rows"] == 40 and figures["mean_norm"]["fitted"] == before["mean_norm"]["fitted"]


# Where references come from and go to


def test_starter_chains_have_a_fit_distribution_that_matches_their_certificate():
    for name in ("codes48", "compact", "debias"):
        loaded = Registry(STARTERS).load(name)
        certificate, distribution = loaded.chain.metadata["certificate"], loaded.fit_distribution
        assert (distribution.count, distribution.heldout) == (certificate["n_fit"], certificate["n_heldout"])
        assert distribution.gaussian.mean_norm == pytest.approx(certificate["mean_norm"]["before"], abs=0.01)


def test_only_live_versions_give_warnings_and_windows_of_deleted_ones_are_dropped(fitted):
    fit(fitted, "left", rows_like(1500, 1))
    observe(fitted, rows_like(1500, 2, turned=True), "left")
    settle(fitted)
    drift = fitted.services.drift
    assert report(fitted, "left")[0]["stale"] is True
    assert any("left@1 is stale" in warning for warning in drift.warnings())
    fit(fitted, "left", rows_like(1500, 2, turned=True), promote=True)
    assert not any("left@1" in warning for warning in drift.warnings())
    fitted.services.registry.delete("left", 1)
    assert "left@1" not in [window.loaded.ref for window, _ in drift.evaluate_all()]
