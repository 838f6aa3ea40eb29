"""Training of an encoder up to its version, where it fails."""

import errno
import json
import os
import time

import pytest
from safetensors import SafetensorError

from lathe.service.publishing.context import PublishContext
from lathe.service.publishing.training import train_encoder
from lathe.service.settings import Settings
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.errors import JobError
from lathe.training.finetuning import run
from lathe.training.finetuning.requests import NewTraining
from lathe.training.workspace import KEPT_SECONDS
from lathe.transforms.progress import no_progress


@pytest.fixture
def context(tmp_path):
    return PublishContext.open(Settings(home=tmp_path, device="cpu"), "lathe train", encoders=())


@pytest.fixture
def train(context, tiny_model):
    """Return a function that trains the tiny encoder by a request."""
    spec = EncoderSpec("tiny", str(tiny_model))
    return lambda request: train_encoder(request, context, no_progress, base=spec, auxiliary=spec)


@pytest.fixture
def request_of_training(tmp_path):
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"anchor": "a", "positive": "b"}))
    return NewTraining(name="mine", method="pft", job={"sources": [{"jsonl": str(tmp_path / "pairs.jsonl")}]})


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")]
)
def test_a_training_without_memory_says_what_to_set(context, train, request_of_training, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(run, "run_training", fail)
    with pytest.raises(JobError, match="out of memory: set a smaller batch_size"):
        train(request_of_training)
    assert context.trained.names() == []


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "trainer_state.json"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        RuntimeError("[enforce fail at inline_container.cc:659] . PytorchStreamWriter failed writing file data/7"),
    ],
)
def test_a_training_on_a_full_disk_says_so_and_frees_its_checkpoints(
    context, train, request_of_training, monkeypatch, error
):
    def fail(_method, _job, _spec, _device, folder, *_, **__):
        (folder / "training" / "checkpoint-1").mkdir(parents=True)
        (folder / "training" / "checkpoint-1" / "model.safetensors").write_bytes(bytes(1000))
        (folder / ".model").mkdir()
        raise error

    monkeypatch.setattr(run, "run_training", fail)
    with pytest.raises(JobError, match="the disk is full"):
        train(request_of_training)
    assert not [*context.home.training.rglob("checkpoint-*"), *context.home.training.rglob(".model")]


def test_a_stopped_training_keeps_its_folder_for_a_week(context, train, request_of_training, monkeypatch):
    def stop(*_, **__):
        raise JobError("stopped")

    monkeypatch.setattr(run, "run_training", stop)
    folders = []
    for name in ("first", "second"):
        with pytest.raises(JobError, match="stopped"):
            train(request_of_training.model_copy(update={"name": name}))
        folders.append({path for path in context.home.training.iterdir() if path.is_dir()})
    assert [len(found) for found in folders] == [1, 2]

    (first,) = folders[0]
    old = time.time() - KEPT_SECONDS - 60
    os.utime(first, (old, old))
    with pytest.raises(JobError, match="stopped"):
        train(request_of_training.model_copy(update={"name": "third"}))
    assert not first.exists() and len([path for path in context.home.training.iterdir() if path.is_dir()]) == 2
