import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lathe.training.encoder.opening import StoredEncoder
from lathe.training.encoder.spec import StoreSettings
from lathe.training.encoder.vector_database import VectorDatabase
from lathe.training.errors import FitError, SourceError
from lathe.training.fitting import out_of_domain
from lathe.training.fitting.fit import fit_new_chain
from lathe.training.fitting.out_of_domain import OutOfDomainTexts, cached_texts_path, list_built_in_corpora
from lathe.training.fitting.requests import MIN_DISTINCT_ROWS, NewFit, check_gate_names, list_failed_gates
from lathe.training.fitting.split import HELDOUT_SHARE, MAX_HELDOUT, MIN_HELDOUT, split_heldout
from lathe.training.sources.source import open_source
from lathe.transforms import Chain, StepError
from lathe.transforms.progress import no_progress

QUALITIES = {"local_spearman", "recall_at_10", "recall_at_10_rescored_4x", "positional_stress"}
STEPS = [{"kind": "r2"}, {"kind": "geopres", "dimensions": 32, "nested": True, "steps": 10}]
DISTINCT, OUT_OF_DOMAIN = 200, 100


@dataclass
class Fit:
    """Results of a fit, kept after its context manager has ended."""

    chain: Chain
    certificate: dict
    failed_gates: list[str]
    vectors: np.ndarray
    hashes: np.ndarray
    progress: list[float]
    messages: list[str]


def fit(source, encoder, workspace, steps=STEPS, **request) -> Fit:
    progress: list[tuple[float, str]] = []
    asked = NewFit(name="name", steps=steps, source=str(source), **request)
    with fit_new_chain(asked, encoder, workspace, lambda *at: progress.append(at), "lathe fit") as fitted:
        return Fit(
            fitted.chain,
            fitted.certificate,
            fitted.failed_gates,
            np.array(fitted.encoded.vectors),
            np.array(fitted.encoded.hashes),
            [fraction for fraction, _ in progress],
            [message for _, message in progress],
        )


@pytest.fixture(scope="module")
def texts(paragraphs):
    """Return 200 real English paragraphs, then one of them again and a blank text."""
    return [*paragraphs[:DISTINCT], paragraphs[0], " "]


@pytest.fixture(scope="module")
def source(texts, tmp_path_factory):
    path = tmp_path_factory.mktemp("secret-folder") / "docs.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return path


@pytest.fixture(scope="module")
def whole(source, brief_encoder, workspace):
    """Fit real text with the real model and two gates, one of which fails."""
    return fit(
        source, brief_encoder, workspace, gates={"recall_at_10": 0.99, "out_of_domain.pydoc.local_spearman": 0.2}
    )


@pytest.fixture(scope="module")
def vectors(whole, tmp_path_factory):
    """Return the path of a file with the real vectors of the whole fit."""
    path = tmp_path_factory.mktemp("vectors") / "docs.npy"
    np.save(path, whole.vectors)
    return path


def test_a_certificate_has_the_documented_keys_and_is_json(whole):
    assert set(whole.certificate) == QUALITIES | {
        *("n_fit", "n_heldout", "seed", "mean_norm", "isoscore", "bytes_per_vector", "diagnostics", "sizes"),
        *("out_of_domain", "warnings"),
    }
    for key in ("mean_norm", "isoscore", "bytes_per_vector"):
        assert set(whole.certificate[key]) == {"before", "after"}
    assert json.loads(json.dumps(whole.certificate, allow_nan=False)) == whole.certificate
    assert set(whole.certificate["sizes"]) == {"8", "16", "24"}
    assert set(whole.certificate["out_of_domain"]) == {"pydoc"}
    outside = whole.certificate["out_of_domain"]["pydoc"]
    assert set(outside) == QUALITIES | {"n"} and outside["n"] == OUT_OF_DOMAIN
    for part in (whole.certificate, outside, *whole.certificate["sizes"].values()):
        assert all(0 < part[measure] <= 1 for measure in QUALITIES)
    warnings = " ".join(whole.certificate["warnings"])
    assert "1 blank texts" in warnings and "1 rows repeat" in warnings


def test_a_fit_on_real_text_keeps_neighbours_and_lowers_the_mean_norm(whole):
    assert whole.certificate["local_spearman"] > 0.6
    assert whole.certificate["recall_at_10_rescored_4x"] > 0.9
    assert whole.certificate["mean_norm"]["after"] < whole.certificate["mean_norm"]["before"] * 0.7
    assert whole.certificate["bytes_per_vector"] == {"before": 4 * 384, "after": 4 * 32}


def test_every_distinct_row_is_fitted_on_or_held_out_and_n_fit_counts_repeated_rows(whole):
    assert len(whole.vectors) == DISTINCT + 1
    fit_rows, heldout_rows = split_heldout(whole.hashes, seed=0)
    assert (whole.certificate["n_fit"], whole.certificate["n_heldout"]) == (len(fit_rows), len(heldout_rows))
    assert len(set(whole.hashes[fit_rows])) + len(heldout_rows) == DISTINCT


def test_the_metadata_hold_certificate_encoder_and_provenance_without_paths_and_texts(
    whole, source, texts, workspace, brief_encoder
):
    assert whole.chain.metadata["encoder"] == brief_encoder.describe()
    assert whole.chain.metadata["certificate"] == whole.certificate
    provenance = whole.chain.metadata["provenance"]
    assert provenance["source"] == "docs.jsonl"
    assert provenance["rows"] == DISTINCT + 1
    assert provenance["seed"] == 0
    assert provenance["command"] == "lathe fit"
    assert provenance["gates"] == {"recall_at_10": 0.99, "out_of_domain.pydoc.local_spearman": 0.2}
    assert set(provenance["libraries"]) == {"python", "torch", "numpy"}
    told = json.dumps(whole.chain.metadata)
    for secret in ("secret-folder", str(Path.cwd()), str(Path.home()), str(workspace), *texts[:-1]):
        assert secret not in told


def test_provenance_has_a_sha256_digest_that_depends_on_the_rows(whole, workspace, tmp_path):
    path = tmp_path / "shorter.npy"
    np.save(path, whole.vectors[:-1])
    digest = whole.chain.metadata["provenance"]["rows_digest"]
    assert len(digest) == 64
    assert fit(path, None, workspace, [{"kind": "r2"}]).chain.metadata["provenance"]["rows_digest"] != digest


def test_progress_never_decreases_and_its_messages_name_every_stage(whole):
    assert whole.progress == sorted(whole.progress)
    assert 0 <= whole.progress[0]
    assert 0.95 < whole.progress[-1] <= 1
    told = "\n".join(whole.messages)
    for stage in ("rows encoded", "fitting r2", "fitting geopres", "out-of-domain text: pydoc", "held-out"):
        assert stage in told


def test_after_a_fit_the_workspace_holds_only_out_of_domain_texts(source, counting_hashes, new_workspace):
    fit(source, counting_hashes(), new_workspace, [{"kind": "r2"}, {"kind": "pca", "dimensions": 8}])
    left = [path for path in new_workspace.rglob("*") if path.is_file()]
    assert {(path.parent.name, path.suffix) for path in left} == {("out_of_domain", ".json")}


def test_out_of_domain_text_is_encoded_once_by_an_encoder_that_stores_its_vectors(
    brief_encoder, new_workspace, tmp_path, monkeypatch
):
    encode, encoded = brief_encoder.encode, []
    monkeypatch.setattr(
        brief_encoder, "encode", lambda texts, **options: encoded.extend(texts) or encode(texts, **options)
    )
    database = VectorDatabase(StoreSettings(tmp_path / "encoded"))
    corpora = OutOfDomainTexts({"pydoc": "pydoc:"}, new_workspace / "out_of_domain")
    first, again = (corpora.encode(StoredEncoder(brief_encoder, database), no_progress)["pydoc"] for _ in range(2))
    database.close()
    assert len(encoded) == OUT_OF_DOMAIN
    np.testing.assert_array_equal(again, first)


def test_texts_of_a_built_in_corpus_are_read_once_and_again_if_their_cached_file_is_damaged(tmp_path, monkeypatch):
    samples = []
    monkeypatch.setattr(out_of_domain, "sample_texts", lambda source: samples.append(source) or ["a", "b"])
    for damaged in (b"", b'["a", "b', None):
        if damaged is not None:
            cached_texts_path(open_source("pydoc:"), tmp_path).write_bytes(damaged)
        assert OutOfDomainTexts({"pydoc": "pydoc:"}, tmp_path).read("pydoc") == ["a", "b"]
    assert len(samples) == 2


def test_a_fit_on_a_built_in_source_is_certified_on_the_other_built_in_source(counting_hashes, new_workspace):
    fitted = fit("pydoc:topics", counting_hashes(), new_workspace, [{"kind": "r2"}])
    assert set(fitted.certificate["out_of_domain"]) == {"pydoc"}
    assert fitted.chain.metadata["provenance"]["source"] == "pydoc:topics"
    assert list_built_in_corpora("pydoc:") == {"pydoc-topics": "pydoc:topics"}


def test_an_out_of_domain_source_without_texts_is_refused(source, vectors, counting_hashes, new_workspace, tmp_path):
    (tmp_path / "blank.txt").write_text("\n")
    for other, reason in ((vectors, r"docs\.npy.* holds vectors"), (tmp_path / "blank.txt", r"blank\.txt")):
        with pytest.raises(SourceError, match=reason):
            fit(source, counting_hashes(), new_workspace, out_of_domain={"mine": str(other)}, steps=[{"kind": "r2"}])


def test_a_fit_of_vectors_without_an_encoder_warns_of_missing_out_of_domain_text(vectors, workspace):
    fitted = fit(vectors, None, workspace, normalize=False)
    assert np.abs(np.linalg.norm(fitted.chain.transform(fitted.vectors), axis=1) - 1).max() > 0.01
    assert fitted.certificate["out_of_domain"] == {}
    assert any("out-of-domain" in warning for warning in fitted.certificate["warnings"])
    assert fitted.chain.metadata["encoder"] is None


def test_a_fit_of_vectors_with_an_encoder_is_certified_on_out_of_domain_text(whole, vectors, brief_encoder, workspace):
    fitted = fit(vectors, brief_encoder, workspace)
    np.testing.assert_allclose(np.linalg.norm(fitted.chain.transform(fitted.vectors), axis=1), 1, atol=1e-5)
    assert fitted.certificate["out_of_domain"].keys() == {"pydoc"}
    assert not any("out-of-domain" in warning for warning in fitted.certificate["warnings"])


def test_the_same_seed_gives_the_same_tensors_and_another_seed_others(vectors, workspace, tmp_path):
    digests = []
    for number, seed in enumerate([7, 7, 8]):
        fitted = fit(vectors, None, workspace, seed=seed)
        assert fitted.certificate["seed"] == seed
        digests.append(fitted.chain.save(tmp_path / str(number))["tensors_sha256"])
    assert digests[0] == digests[1] != digests[2]


def test_failed_gates_are_those_that_the_certificate_does_not_meet(whole):
    assert whole.certificate["recall_at_10"] < 0.99
    assert whole.certificate["out_of_domain"]["pydoc"]["local_spearman"] > 0.2
    assert whole.failed_gates == ["recall_at_10"]


CERTIFICATE = {
    "local_spearman": 0.8,
    "positional_stress": 0.1,
    "recall_at_10": None,
    "mean_norm": {"before": 0.5, "after": 0.2},
    "isoscore": {"before": 0.1, "after": 0.6},
    "bytes_per_vector": {"before": 1536, "after": 512},
    "sizes": {"8": {"recall_at_10": 0.4, "positional_stress": 0.3}},
    "out_of_domain": {"pydoc": {"recall_at_10": 0.5}, "wiki.v2": {"recall_at_10": 0.6, "positional_stress": 0.2}},
}


@pytest.mark.parametrize(
    ("key", "value", "larger_is_better"),
    [
        ("local_spearman", 0.8, True),
        ("isoscore.after", 0.6, True),
        ("out_of_domain.wiki.v2.recall_at_10", 0.6, True),
        ("sizes.8.recall_at_10", 0.4, True),
        ("out_of_domain.wiki.v2.positional_stress", 0.2, False),
        ("mean_norm.after", 0.2, False),
        ("bytes_per_vector.after", 512, False),
    ],
)
def test_a_gate_passes_at_its_value_and_on_the_better_side_and_fails_on_the_other(key, value, larger_is_better):
    check_gate_names({key: value})
    better, worse = (value * 0.9, value * 1.1) if larger_is_better else (value * 1.1, value * 0.9)
    assert list_failed_gates({key: value}, CERTIFICATE) == []
    assert list_failed_gates({key: better}, CERTIFICATE) == []
    assert list_failed_gates({key: worse}, CERTIFICATE) == [key]


def test_a_gate_on_a_metric_that_was_not_measured_or_is_nan_fails():
    for key in ("recall_at_10", "recall_at_10_rescored_4x", "out_of_domain.other.recall_at_10", "sizes.9.recall_at_10"):
        check_gate_names({key: 0.0})
        assert list_failed_gates({key: 0.0}, CERTIFICATE) == [key]
    for key in ("local_spearman", "positional_stress"):
        assert list_failed_gates({key: 0.5}, {key: float("nan")}) == [key]
        assert list_failed_gates({key: float("nan")}, {key: 0.5}) == [key]


UNKNOWN = ("", "spearman", "n_fit", "mean_norm", "mean_norm.before", "isoscore.before", "warnings", "out_of_domain")
UNKNOWN += ("out_of_domain.a", "out_of_domain.a.n", "out_of_domain.a.mean_norm.after", "other.a.recall_at_10")


def test_an_unknown_gate_is_refused_before_encoding_and_the_known_ones_are_listed(source, counting_hashes, tmp_path):
    for key in UNKNOWN:
        with pytest.raises(FitError, match="no gate.*local_spearman"):
            check_gate_names({key: 0.5})
    encoder = counting_hashes()
    with pytest.raises(FitError, match="no gate"):
        fit(source, encoder, tmp_path, gates={"spearman": 0.5}, steps=[{"kind": "r2"}])
    assert encoder.calls == 0


def test_steps_with_more_dimensions_than_the_encoder_are_refused_before_encoding(source, counting_hashes, tmp_path):
    encoder = counting_hashes()
    with pytest.raises(StepError, match=str(encoder.dimensions)):
        fit(source, encoder, tmp_path)  # 32 of 16 dimensions
    assert encoder.calls == 0


def test_too_few_distinct_rows_are_refused_and_their_number_is_named(tmp_path):
    rows = np.repeat(np.eye(MIN_DISTINCT_ROWS - 1, 8, dtype=np.float32), 20, axis=0)
    np.save(tmp_path / "few.npy", rows)
    with pytest.raises(FitError, match=f"at least {MIN_DISTINCT_ROWS}.* has {MIN_DISTINCT_ROWS - 1}"):
        fit(tmp_path / "few.npy", None, tmp_path / "workspace", [{"kind": "r2"}])


def test_a_fit_on_the_fewest_distinct_rows_warns_of_metrics_that_are_null(tmp_path):
    rows = np.random.default_rng(0).standard_normal((MIN_DISTINCT_ROWS, 8)).astype(np.float32)
    np.save(tmp_path / "few.npy", rows)
    certificate = fit(tmp_path / "few.npy", None, tmp_path / "workspace", [{"kind": "r2"}]).certificate
    assert (certificate["n_fit"], certificate["n_heldout"]) == (2, 2)
    assert certificate["recall_at_10"] is None
    assert any("null" in warning for warning in certificate["warnings"])


def test_a_fit_after_an_error_in_the_context_reuses_the_encoded_vectors(source, texts, counting_hashes, new_workspace):
    request = NewFit(name="name", steps=[{"kind": "r2"}], source=str(source))
    first, second = counting_hashes(), counting_hashes()
    with pytest.raises(KeyError), fit_new_chain(request, first, new_workspace, no_progress):
        raise KeyError
    with fit_new_chain(request, second, new_workspace, no_progress) as fitted:
        assert len(fitted.encoded.vectors) == DISTINCT + 1
    assert len(first.texts) == DISTINCT + 1 + OUT_OF_DOMAIN
    assert len(second.texts) == OUT_OF_DOMAIN and not set(second.texts) & set(texts)


@given(st.lists(st.integers(0, 40), max_size=300), st.integers(0, 2**31))
@example([], 0)
def test_split_heldout_never_puts_equal_rows_on_both_sides(values, seed):
    """Held-out rows are distinct, all other rows are fitted on, and fewer than `MIN_DISTINCT_ROWS` raise `FitError`."""
    hashes = np.array(values, np.uint64)
    distinct = len(set(values))
    if distinct < MIN_DISTINCT_ROWS:
        with pytest.raises(FitError, match=str(distinct)):
            split_heldout(hashes, seed)
        return
    fit_rows, heldout_rows = split_heldout(hashes, seed)
    fitted, heldout = set(hashes[fit_rows].tolist()), set(hashes[heldout_rows].tolist())
    assert not fitted & heldout
    assert fitted | heldout == set(values)
    assert len(heldout_rows) == len(heldout)
    assert list(heldout_rows) == sorted(heldout_rows)
    assert list(fit_rows) == [row for row, value in enumerate(values) if value in fitted]
    assert len(fitted) >= distinct / 2


@given(st.lists(st.integers(0, 2**64 - 1), min_size=10, max_size=100, unique=True), st.integers(0, 2**31), st.randoms())
def test_split_heldout_does_not_depend_on_the_order_of_the_rows(values, seed, random):
    mixed = list(values)
    random.shuffle(mixed)
    sides = [
        np.array(rows, np.uint64)[split_heldout(np.array(rows, np.uint64), seed)[1]] for rows in (values, values, mixed)
    ]
    assert sides[0].tolist() == sides[1].tolist()
    assert sorted(sides[0].tolist()) == sorted(sides[2].tolist())


def test_split_heldout_holds_out_a_fifth_between_min_heldout_and_max_heldout():
    """Of fewer than 2 · `MIN_HELDOUT` rows, half are held out."""
    for rows in (4, 60, 99, 100, 101, 300, 1000, 24_999, 25_000, 25_010, 60_000):
        fit_rows, heldout_rows = split_heldout(np.arange(rows, dtype=np.uint64), 0)
        assert len(fit_rows) + len(heldout_rows) == rows
        if rows < 2 * MIN_HELDOUT:
            assert len(heldout_rows) == rows // 2
        else:
            assert len(heldout_rows) == min(max(rows * HELDOUT_SHARE // 1, MIN_HELDOUT), MAX_HELDOUT)
    hashes = np.arange(1000, dtype=np.uint64)
    assert set(split_heldout(hashes, 0)[1]) != set(split_heldout(hashes, 1)[1])
