"""A fit by an encoder that stores no vectors leaves nothing of its queries and pairs on disk."""

import json
from pathlib import Path

import numpy as np
import pytest

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.errors import FitError
from lathe.training.fitting.fit import SAMPLED_ROWS, fit_new_chain, join_general_rows, sample_unit_rows
from lathe.training.fitting.requests import NewFit
from lathe.transforms import PCA
from lathe.transforms.base import Checkpoint
from lathe.transforms.progress import no_progress
from lathe.transforms.statistics import Gaussian, Moments
from tests.training.fitting.numbered import ADAPTER, NumberEncoder, pairs_of, write

CANARY = "query 777777"
"""A query that no other text has a part of; its vector is as unique."""


class Stopped(Exception):
    """Stands for a kill in the middle of a training."""


def find_traces(folder, encoder):
    """Return the files below a folder that hold the canary's text, an id of it, or its vector in any precision."""
    vector = encoder.encode([CANARY]).vectors[0]
    needles = [CANARY.encode(), b"777777", *(vector.astype(dtype)[:4].tobytes() for dtype in ("f2", "f4", "f8"))]
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.name for path in files if any(needle in path.read_bytes() for needle in needles)]


@pytest.fixture
def documents(tmp_path_factory):
    return write(tmp_path_factory.mktemp("given") / "documents.jsonl", [{"text": f"document {n}"} for n in range(600)])


@pytest.fixture
def pairs(tmp_path_factory):
    rows = [*pairs_of(range(400)), {"query": CANARY, "document": "document 5"}]
    return write(tmp_path_factory.mktemp("given") / "pairs.jsonl", rows)


@pytest.fixture
def state(new_workspace):
    """Return a state folder, with out-of-domain texts in it."""
    return new_workspace.parent


def fit(state, source, on_progress=no_progress, **request):
    """Fit an adapter of queries, save the chain in the state folder, and return its certificate."""
    asked = NewFit(name="adapted", steps=ADAPTER, source=source, **request)
    with fit_new_chain(asked, NumberEncoder(), state / "vectors", on_progress) as fitted:
        fitted.chain.save(state / "chain", distribution=fitted.distribution)
        return fitted.certificate


def test_a_fit_on_pairs_leaves_no_trace(state, documents, pairs):
    certificate = fit(state, documents, pairs=pairs)
    assert find_traces(state, NumberEncoder()) == []
    np.save(state / "a.npy", NumberEncoder().encode(["query 1", CANARY]).vectors)
    assert find_traces(state, NumberEncoder()) == ["a.npy"], "a trace would be found"
    assert certificate["relevance"]["queries"] == 80


def test_a_fit_that_is_stopped_in_training_leaves_no_trace(state, documents, pairs, monkeypatch):
    always = classmethod(lambda cls, place: place if isinstance(place, cls) else cls(Path(place), seconds=0, share=1))
    monkeypatch.setattr(Checkpoint, "at", always)

    def stop(fraction, message):
        if "query_adapter step 30" in message:
            raise Stopped

    with pytest.raises(Stopped):
        fit(state, documents, on_progress=stop, pairs=pairs)
    assert any(state.rglob("*.f32")) and any(state.rglob("*query_adapter.safetensors")), "both stay, to go on from"
    assert find_traces(state, NumberEncoder()) == []


@pytest.fixture(scope="module")
def pairs_of_targets():
    """Return rows, and the same rows rotated with noise added."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 16)).astype(np.float32)
    rotation, _ = np.linalg.qr(rng.normal(size=(16, 16)))
    return rows, (rows @ rotation + rng.normal(size=rows.shape) * 0.05).astype(np.float32)


@pytest.fixture
def files(pairs_of_targets, tmp_path):
    """Write source and target rows to files, and return their paths."""
    for name, rows in zip(("source.npy", "targets.npy"), pairs_of_targets, strict=True):
        np.save(tmp_path / name, rows)
    return str(tmp_path / "source.npy"), str(tmp_path / "targets.npy")


def fit_of_targets(steps, source, workspace, targets=None, encoder=None, target_encoder=None, **request):
    name = None if target_encoder is None else "target"
    asked = NewFit(name="aligned", steps=steps, source=source, targets=targets, target_encoder=name, **request)
    with fit_new_chain(asked, encoder, workspace, no_progress, target_encoder=target_encoder) as fitted:
        return fitted


@pytest.mark.parametrize("kind", ["procrustes", "low_rank_affine", "contrastive_alignment"])
def test_an_alignment_step_is_fitted_on_two_files_and_certified_on_held_out_pairs(
    kind, pairs_of_targets, files, tmp_path
):
    source, targets = files
    fitted = fit_of_targets([{"kind": kind}], source, tmp_path / "work", targets, gates={"alignment.cosine": 0.99})
    assert fitted.failed_gates == []
    alignment = fitted.certificate["alignment"]
    assert alignment["cosine"] > 0.99
    assert alignment["recall_at_10"] > 0.7
    out = fitted.chain.transform(pairs_of_targets[0])
    expected = pairs_of_targets[1] / np.linalg.norm(pairs_of_targets[1], axis=1, keepdims=True)
    assert (out * expected).sum(1).mean() > 0.99


def test_the_held_out_split_keeps_source_and_target_rows_paired(files, pairs_of_targets, tmp_path):
    source, targets = files
    shuffled = np.random.default_rng(1).permutation(pairs_of_targets[1])
    np.save(tmp_path / "shuffled.npy", shuffled)
    right = fit_of_targets([{"kind": "procrustes"}], source, tmp_path / "work", targets)
    wrong = fit_of_targets([{"kind": "procrustes"}], source, tmp_path / "work", str(tmp_path / "shuffled.npy"))
    assert wrong.certificate["alignment"]["cosine"] < 0.5 < right.certificate["alignment"]["cosine"]


def test_targets_with_another_number_of_rows_are_refused(files, pairs_of_targets, tmp_path):
    np.save(tmp_path / "fewer.npy", pairs_of_targets[1][:-1])
    with pytest.raises(FitError, match="399 rows and the source has 400"):
        fit_of_targets([{"kind": "procrustes"}], files[0], tmp_path / "work", str(tmp_path / "fewer.npy"))


def test_an_alignment_of_texts_raises_the_cosine_to_the_target_encoders_vectors(
    brief_encoder, workspace, tmp_path, paragraphs
):
    texts = paragraphs[:160]
    source = tmp_path / "texts.jsonl"
    source.write_text("\n".join(json.dumps({"text": text}) for text in [*texts, " "]))
    shallow = Encoder(EncoderSpec("shallow", layer=1, max_length=16))
    fitted = fit_of_targets(
        [{"kind": "low_rank_affine", "rank": 32, "ridge": 0.1}],
        str(source), workspace, encoder=shallow, target_encoder=brief_encoder,
    )  # fmt: skip
    before = (shallow.encode(texts).vectors * brief_encoder.encode(texts).vectors).sum(1).mean()
    assert fitted.certificate["alignment"]["cosine"] > before + 0.1
    assert fitted.chain.metadata["target_encoder"]["fingerprint"] == brief_encoder.fingerprint
    assert fitted.chain.metadata["encoder"]["fingerprint"] == shallow.fingerprint


def sample(count, scales, seed):
    rows = np.random.default_rng(seed).normal(size=(count, len(scales))) * scales + 0.3
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


OWN, GENERAL = np.arange(1, 33) ** -1.0, np.arange(1, 33) ** -0.7


def test_the_weight_of_general_vectors_falls_with_the_number_of_rows_and_errors_with_it():
    general, truth = sample(2000, GENERAL, 0), np.cov(sample(50_000, OWN, 1).T)
    shares = []
    for count in (10, 40, 160, 640):
        rows = sample(count, OWN, 2)
        joined, share = join_general_rows(rows, general)
        shares.append(share)
        np.testing.assert_array_equal(joined[:1], rows[:1])
        errors = [np.linalg.norm(np.cov(fitted.T) - truth) for fitted in (joined, rows)]
        assert errors[0] < errors[1] or share < 0.05
    assert shares == sorted(shares, reverse=True) and shares[0] > 0.5 and shares[-1] < 0.2


def test_rows_that_determine_their_covariance_stay_alone():
    rows = sample(5000, OWN, 0)
    joined, share = join_general_rows(rows, sample(2000, GENERAL, 1))
    assert joined is rows and share == 0


def test_vectors_sampled_from_a_gaussian_have_its_directions_and_unit_norms():
    rows = sample(20_000, OWN, 3)
    sampled = sample_unit_rows(Gaussian.fit(Moments.from_vectors(rows)))
    assert sampled.shape == (SAMPLED_ROWS, 32)
    np.testing.assert_allclose(np.linalg.norm(sampled, axis=1), 1, atol=1e-5)
    first, second = (PCA(1).fit(vectors).weight.numpy() for vectors in (rows, sampled))
    assert abs(first @ second.T) > 0.99
    np.testing.assert_array_equal(sampled, sample_unit_rows(Gaussian.fit(Moments.from_vectors(rows))))


@pytest.mark.parametrize(
    ("count", "request_fields", "leans"),
    [
        (50, {"bytes": 24}, True),
        (50, {"steps": [{"kind": "r2"}, {"kind": "pca", "dimensions": 64}]}, True),
        (50, {"steps": [{"kind": "r2"}]}, False),
        (500, {"bytes": 24}, False),
    ],
)
def test_a_fit_of_few_texts_says_what_it_leans_on(
    tmp_path, brief_encoder, workspace, paragraphs, count, request_fields, leans
):
    """25 rows alone have fewer than 64 principal directions."""
    (tmp_path / "texts.txt").write_text("\n".join(" ".join(text.split()) for text in paragraphs[:count]))
    asked = NewFit(name="few", source=str(tmp_path / "texts.txt"), **request_fields)
    with fit_new_chain(asked, brief_encoder, workspace, no_progress) as fitted:
        warnings = [line for line in fitted.certificate["warnings"] if "general vectors" in line]
        assert len(warnings) == leans
        assert all("%) of general text (pydoc:topics)" in line for line in warnings)
        assert fitted.certificate["n_fit"] <= count


def test_known_general_vectors_are_taken_instead_of_general_texts(tmp_path, brief_encoder, workspace, paragraphs):
    (tmp_path / "texts.txt").write_text("\n".join(" ".join(text.split()) for text in paragraphs[:60]))
    known = Gaussian.fit(Moments.from_vectors(brief_encoder.encode(paragraphs[60:]).vectors))
    asked = NewFit(name="few", source=str(tmp_path / "texts.txt"), bytes=24)
    with fit_new_chain(asked, brief_encoder, workspace, no_progress, general=known) as fitted:
        assert "starter chains" in fitted.certificate["warnings"][0]
