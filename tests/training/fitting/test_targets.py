import json

import numpy as np
import pytest

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.errors import FitError
from lathe.training.fitting.fit import fit_new_chain
from lathe.training.fitting.requests import NewFit
from lathe.transforms.progress import no_progress


@pytest.fixture(scope="module")
def pairs():
    """Return rows, and the same rows rotated with noise added."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 16)).astype(np.float32)
    rotation, _ = np.linalg.qr(rng.normal(size=(16, 16)))
    return rows, (rows @ rotation + rng.normal(size=rows.shape) * 0.05).astype(np.float32)


@pytest.fixture
def files(pairs, tmp_path):
    """Write source and target rows to files, and return their paths."""
    for name, rows in zip(("source.npy", "targets.npy"), pairs, strict=True):
        np.save(tmp_path / name, rows)
    return str(tmp_path / "source.npy"), str(tmp_path / "targets.npy")


def fit(steps, source, workspace, targets=None, encoder=None, target_encoder=None, **request):
    name = None if target_encoder is None else "target"
    asked = NewFit(name="aligned", steps=steps, source=source, targets=targets, target_encoder=name, **request)
    with fit_new_chain(asked, encoder, workspace, no_progress, target_encoder=target_encoder) as fitted:
        return fitted


@pytest.mark.parametrize("kind", ["procrustes", "low_rank_affine", "contrastive_alignment"])
def test_an_alignment_step_is_fitted_on_two_files_and_certified_on_held_out_pairs(kind, pairs, files, tmp_path):
    source, targets = files
    fitted = fit([{"kind": kind}], source, tmp_path / "work", targets, gates={"alignment.cosine": 0.99})
    assert fitted.failed_gates == []
    alignment = fitted.certificate["alignment"]
    assert alignment["cosine"] > 0.99
    assert alignment["recall_at_10"] > 0.7
    out = fitted.chain.transform(pairs[0])
    expected = pairs[1] / np.linalg.norm(pairs[1], axis=1, keepdims=True)
    assert (out * expected).sum(1).mean() > 0.99


def test_the_held_out_split_keeps_source_and_target_rows_paired(files, pairs, tmp_path):
    source, targets = files
    shuffled = np.random.default_rng(1).permutation(pairs[1])
    np.save(tmp_path / "shuffled.npy", shuffled)
    right = fit([{"kind": "procrustes"}], source, tmp_path / "work", targets)
    wrong = fit([{"kind": "procrustes"}], source, tmp_path / "work", str(tmp_path / "shuffled.npy"))
    assert wrong.certificate["alignment"]["cosine"] < 0.5 < right.certificate["alignment"]["cosine"]


def test_targets_with_another_number_of_rows_are_refused(files, pairs, tmp_path):
    np.save(tmp_path / "fewer.npy", pairs[1][:-1])
    with pytest.raises(FitError, match="399 rows and the source 400"):
        fit([{"kind": "procrustes"}], files[0], tmp_path / "work", str(tmp_path / "fewer.npy"))


def test_an_alignment_of_texts_raises_the_cosine_to_the_target_encoders_vectors(
    brief_encoder, workspace, tmp_path, paragraphs
):
    texts = paragraphs[:160]
    source = tmp_path / "texts.jsonl"
    source.write_text("\n".join(json.dumps({"text": text}) for text in [*texts, " "]))
    shallow = Encoder(EncoderSpec("shallow", layer=1, max_length=16))
    fitted = fit(
        [{"kind": "low_rank_affine", "rank": 32, "ridge": 0.1}],
        str(source), workspace, encoder=shallow, target_encoder=brief_encoder,
    )  # fmt: skip
    before = (shallow.encode(texts).vectors * brief_encoder.encode(texts).vectors).sum(1).mean()
    assert fitted.certificate["alignment"]["cosine"] > before + 0.1
    assert fitted.chain.metadata["target_encoder"]["fingerprint"] == brief_encoder.fingerprint
    assert fitted.chain.metadata["encoder"]["fingerprint"] == shallow.fingerprint
