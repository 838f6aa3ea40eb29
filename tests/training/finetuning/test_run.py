import os
import shutil
from dataclasses import replace

import numpy as np
import orjson
import pytest
import torch

from lathe.training.encoder.encoder import Encoder
from lathe.training.errors import JobError
from lathe.training.finetuning.job import TrainingJob
from lathe.training.finetuning.loss import NonFiniteLossError
from lathe.training.finetuning.regularizers.registry import REGULARIZED
from lathe.training.finetuning.regularizers.regularizer import RegularizerSettings
from lathe.training.finetuning.regularizers.shrinkage import compute_source_moments, fit_shrinkage

WORDS = ["ledger", "lathe", "rain", "committee", "interest", "tomato", "wall", "spring", "bank", "hill"]
TRAINING = {"precision": "float32", "batch_size": 4, "log_steps": 2, "checkpoint_steps": 2, "max_length": 12}
METHODS = ("reze", "distill", "pft")  # ft trains like pft


def rows_of(source, count):
    return [
        {"anchor": f"{source} {WORDS[n % 10]} {n}", "positive": f"{WORDS[n % 7]} {source} of {n // 2}"}
        for n in range(count)
    ]


@pytest.fixture
def job_of(tmp_path, tiny_model, write_data_set):
    """Return a function that builds a job of sources with `counts` pairs and the given training settings."""

    def build(counts=(12, 9, 7), sources="abcd", regularizer=None, **given):
        named = dict(zip(sources, counts, strict=False))
        for name, count in named.items():
            write_data_set(tmp_path / "data" / name, {"task": "pairs"}, {"train.jsonl": rows_of(name, count)})
        return TrainingJob.model_validate(
            {
                "encoder": str(tiny_model),
                "sources": [{"folder": tmp_path / "data" / name} for name in named],
                "regularizer": regularizer or {"scale": 0.5},
                "training": TRAINING | given,
            }
        )

    return build


@pytest.fixture
def lines(tmp_path):
    """Return a function that reads the training log of a run."""

    def read(out="out"):
        return [
            orjson.loads(line) for line in (tmp_path / out / "training" / "progress.jsonl").read_bytes().splitlines()
        ]

    return read


def assert_equal_logs(found, expected):
    assert [line["step"] for line in found] == [line["step"] for line in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name] == pytest.approx(other[name], abs=1e-6), (name, one, other)


def vectors_of(model, texts=("the ledger is closed", "rain")):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(model), device="cpu").encode(list(texts), normalize_embeddings=True)


def require_shrunk_relations(outcome, tiny):
    """Assert that the targets of a training are the shrunk relations of the base model."""
    mixture, folder = outcome.mixture, outcome.model.parent / "targets"
    encoder = Encoder(replace(tiny, max_length=TRAINING["max_length"]), "cpu")
    anchors, positives = (encoder.encode(texts).vectors for texts in (mixture.anchors, mixture.positives))
    relations = np.hstack([anchors, positives])
    np.testing.assert_allclose(np.load(folder / "relations.npy"), relations, atol=1e-5)
    shrinkage = fit_shrinkage(compute_source_moments(relations, mixture.sources, 3), RegularizerSettings(scale=0.5))
    assert len(shrinkage.changed)
    targets = np.load(folder / "targets.npy")
    np.testing.assert_allclose(targets, shrinkage.apply(relations, mixture.sources), atol=1e-4)
    np.testing.assert_array_equal(outcome.regularizer.targets, targets)


@pytest.mark.parametrize("method", METHODS)
def test_a_training_writes_a_sentence_transformers_model_with_the_bases_max_length(
    job_of, run_job, lines, tiny, tiny_model, method
):
    from sentence_transformers import SentenceTransformer

    outcome = run_job(job_of(), method)
    steps = 7  # 28 pairs, 4 a step
    assert (outcome.summary["steps"], outcome.summary["pairs"], outcome.summary["resumed_from"]) == (steps, 28, 0)
    assert orjson.loads((outcome.model.parent / "training.json").read_bytes()) == outcome.summary
    assert [line["step"] for line in lines()] == list(range(2, steps + 1, 2))
    assert ("regularizer" in lines()[0]) == (method in REGULARIZED) == (method in ("reze", "distill"))
    model = SentenceTransformer(str(outcome.model), device="cpu")
    assert model.max_seq_length == SentenceTransformer(str(tiny_model), device="cpu").max_seq_length == 32
    served = Encoder(replace(tiny, model=str(outcome.model)), "cpu")
    texts = ["the ledger is closed", "rain " * 20]
    np.testing.assert_allclose(served.encode(texts).vectors, model.encode(texts), atol=1e-5)
    assert np.abs(vectors_of(outcome.model) - vectors_of(tiny_model)).max() > 1e-3
    if method == "distill":
        relations = np.load(outcome.model.parent / "targets" / "relations.npy")
        np.testing.assert_array_equal(outcome.regularizer.targets, relations)
    if method == "reze":
        require_shrunk_relations(outcome, tiny)
    assert not any(b"lathe" in path.read_bytes() for path in outcome.model.rglob("*.json"))
    left = {path.name for path in outcome.model.parent.rglob("*")}
    assert "training_args.bin" not in left and not any(name.startswith("checkpoint-") for name in left)


def test_a_resumed_training_has_the_losses_and_model_of_one_that_never_stopped(job_of, run_job, lines):
    job, stop_at = job_of((31,), epochs=2, log_steps=3, checkpoint_steps=2), 12  # the second epoch begins at step 8
    whole = run_job(job, out="whole")
    with pytest.raises(KeyboardInterrupt):
        run_job(job, out="stopped", stop_at=stop_at)
    again = run_job(job, out="stopped")
    assert 0 < again.summary["resumed_from"] < stop_at
    np.testing.assert_allclose(vectors_of(again.model), vectors_of(whole.model), atol=1e-6)
    assert_equal_logs(lines("stopped"), lines("whole"))


def environment(tmp_path):
    """Return the environment of a `lathe` process with its home in `tmp_path`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LATHE_")}
    return kept | {"LATHE_HOME": str(tmp_path / "home"), "LATHE_DEVICE": "cpu", "LATHE_THREADS": "1"}


def test_an_incomplete_checkpoint_is_deleted_and_the_training_resumes_before_the_checkpoint(
    job_of, run_job, lines, tmp_path
):
    job = job_of((40,))
    with pytest.raises(KeyboardInterrupt):
        run_job(job, stop_at=8)
    folder = tmp_path / "out" / "training"
    half = folder / "checkpoint-8"
    shutil.copytree(folder / "checkpoint-6", half, dirs_exist_ok=True)
    (half / "whole.json").unlink(missing_ok=True)
    (half / "model.safetensors").write_bytes(b"cut")
    (tmp_path / "out" / ".model").mkdir()
    with (folder / "progress.jsonl").open("ab") as file:
        file.write(b'{"step": 9, "contr')
    outcome = run_job(job)
    assert outcome.summary["resumed_from"] == 6
    assert [line["step"] for line in lines()] == [2, 4, 6, 8, 10]
    assert not half.exists() and not (tmp_path / "out" / ".model").exists()


def test_resuming_with_a_changed_base_model_is_refused(job_of, run_job, tiny_model, tmp_path, tiny):
    from sentence_transformers import SentenceTransformer

    with pytest.raises(KeyboardInterrupt):
        run_job(job_of(), "reze", stop_at=4)
    changed = SentenceTransformer(str(tiny_model), device="cpu")
    with torch.no_grad():
        next(changed.parameters()).add_(0.01)
    changed.save_pretrained(str(tmp_path / "changed"))
    with pytest.raises(JobError, match="base model changed"):
        run_job(job_of(), "reze", spec=replace(tiny, model=str(tmp_path / "changed")))
    run_job(job_of(), "reze")


def test_resuming_with_another_job_is_refused_and_the_difference_named(job_of, run_job):
    with pytest.raises(KeyboardInterrupt):
        run_job(job_of(), "reze", stop_at=4)
    changed = [
        ("distill", lambda: job_of(), "another method"),
        ("reze", lambda: job_of(learning_rate=1e-3), "another training"),
        ("reze", lambda: job_of((12, 9, 6)), "another mixture"),
        ("reze", lambda: job_of(regularizer={"scale": 1}), "another regularizer"),
    ]
    for method, other, what in changed:
        with pytest.raises(JobError, match=what):
            run_job(other(), method)
    run_job(job_of(), "reze")
    with pytest.raises(JobError, match="already holds a trained model"):
        run_job(job_of(), "reze")


def test_a_folder_in_use_by_another_job_is_refused(job_of, run_job, tmp_path):
    from filelock import FileLock

    (tmp_path / "out").mkdir()
    with FileLock(tmp_path / "out" / ".lock"), pytest.raises(JobError, match="another job is writing"):
        run_job(job_of())
    run_job(job_of())


@pytest.mark.parametrize(("learning_rate", "warmup", "kept"), [(1e38, 0.0, []), (1e30, 0.1, ["checkpoint-1"])])
def test_a_loss_that_is_not_finite_ends_the_training_and_keeps_the_last_good_checkpoint(
    job_of, run_job, tmp_path, tiny_model, learning_rate, warmup, kept
):
    given = {"learning_rate": learning_rate, "max_grad_norm": 1e30, "checkpoint_steps": 1, "warmup_ratio": warmup}
    job = job_of((40,), **given)  # ten steps: in the one of warmup the learning rate is 0
    with pytest.raises(NonFiniteLossError, match="smaller learning rate") as caught:
        run_job(job)
    assert not (tmp_path / "out" / "model").exists()
    whole = [path.parent for path in (tmp_path / "out" / "training").glob("checkpoint-*/whole.json")]
    for path in whole:  # a weight of 1e30 is a number, but what it makes of a text is none
        np.testing.assert_allclose(vectors_of(path), vectors_of(tiny_model), atol=1e-6)
    assert [path.name for path in whole] == kept
    assert (kept[0] if kept else "there is no checkpoint yet") in str(caught.value)


def test_a_model_with_weights_that_are_not_finite_is_not_saved(job_of, run_job, tmp_path):
    with pytest.raises(NonFiniteLossError):
        run_job(job_of((4,), learning_rate=1e30, max_grad_norm=1e30))
    assert not (tmp_path / "out" / "model").exists()
