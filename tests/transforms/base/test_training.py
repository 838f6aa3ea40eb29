import resource
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lathe.transforms import PCA, Autoencoder, Chain, Flow, GeoPres
from lathe.transforms.base import Checkpoint, FitContext, TrainingConfig
from lathe.transforms.learned.descent import compute_checked_mean, prepare_checkpoint

TENSORS = {
    "steps": torch.tensor(7),
    "loss": torch.tensor(float("nan"), dtype=torch.float64),
    "heldout_losses": torch.zeros(0, dtype=torch.float64),
    "stopped_early": torch.tensor(True),
    "parameter.weight": torch.arange(6.0).view(2, 3).T,  # not contiguous
}


@contextmanager
def files_no_larger_than(size):
    """Let the system refuse any file larger than `size` bytes, as a full disk would."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture
def saved(tmp_path):
    checkpoint = Checkpoint(tmp_path / "fit.safetensors", "key")
    checkpoint.save(TENSORS)
    return checkpoint


@pytest.mark.parametrize("damage", ["empty", "garbage", "cut off", "without a key", "a folder"])
def test_a_checkpoint_that_cannot_be_read_is_none(saved, damage):
    whole = saved.path.read_bytes()
    saved.path.unlink()
    if damage == "a folder":
        saved.path.mkdir()
    elif damage == "without a key":
        save_file({"steps": torch.tensor(7)}, saved.path)
    else:
        saved.path.write_bytes({"empty": b"", "garbage": bytes(range(256)), "cut off": whole[:-9]}[damage])
    assert saved.load() is None


def test_a_failed_checkpoint_write_leaves_the_previous_checkpoint_and_no_other_file(saved):
    with files_no_larger_than(100), pytest.raises(OSError, match="File too large"):
        saved.save({"steps": torch.tensor(8)})
    assert saved.load().keys() == TENSORS.keys()
    assert [path.name for path in saved.path.parent.iterdir()] == [saved.path.name]


SPEC = {"kind": "geopres", "dimensions": 4}
CONFIG = TrainingConfig(9, 10, 0.1)
ROWS = np.random.default_rng(0).normal(size=(100, 6)).astype(np.float32)


def checkpoint_of_fit(path, spec, vectors, config=CONFIG):
    return prepare_checkpoint(
        FitContext(checkpoint=Checkpoint(path)), spec, config, vectors, compute_checked_mean("thing", vectors)
    )


@pytest.mark.parametrize("same", [ROWS.copy(), torch.from_numpy(ROWS), np.asfortranarray(ROWS)])
def test_the_same_parameters_and_vectors_have_the_same_checkpoint(tmp_path, same):
    """The order of the parameters and the array's type or memory layout do not matter."""
    path = tmp_path / "fit.safetensors"
    assert checkpoint_of_fit(path, dict(reversed(SPEC.items())), same) == checkpoint_of_fit(path, SPEC, ROWS)


@pytest.mark.parametrize(
    ("spec", "vectors", "config"),
    [
        (SPEC, ROWS, TrainingConfig(8, 10, 0.1)),
        (SPEC | {"dimensions": 5}, ROWS, CONFIG),
        (SPEC | {"seed": 1}, ROWS, CONFIG),
        (SPEC, ROWS[:-1], CONFIG),
        (SPEC, ROWS[:, :-1], CONFIG),
        (SPEC, ROWS + np.float32(1e-3), CONFIG),
        (SPEC, ROWS[::-1], CONFIG),
        (SPEC, np.concatenate([ROWS[:-1], ROWS[:1]]), CONFIG),
        (SPEC, np.concatenate([ROWS[:50], ROWS[50:51] + np.float32(1e-3), ROWS[51:]]), CONFIG),
    ],
)
def test_other_parameters_vectors_or_training_settings_have_another_checkpoint_key(tmp_path, spec, vectors, config):
    assert checkpoint_of_fit(tmp_path, spec, vectors, config).key != checkpoint_of_fit(tmp_path, SPEC, ROWS).key


FITS = {
    "geopres": lambda: GeoPres(4, steps=12, batch=32),
    "geopres, nested": lambda: GeoPres(6, nested=True, steps=12, batch=32),
    "geopres, paper": lambda: GeoPres(4, preset="paper", steps=12, batch=32),
    "autoencoder": lambda: Autoencoder(4, steps=40, batch=32),
    "autoencoder, out of patience": lambda: Autoencoder(4, steps=400, batch=32, learning_rate=0.1),
    "flow": lambda: Flow(blocks=2, steps=45, batch=32),
}


class Stopped(Exception):
    """Raised by a progress callback to stop a fit."""


@pytest.fixture
def rows(embeddings):
    return embeddings(300, 12)


def every_step(path):
    """Return a checkpoint that is written after every step, however long that takes."""
    return Checkpoint(path, seconds=0.0, share=float("inf"))


@pytest.fixture(params=FITS)
def make(request):
    return FITS[request.param]


def stopping(word):
    """Return a progress callback that raises `Stopped` at the first message that contains `word`."""

    def report(fraction, message):
        if word in message:
            raise Stopped

    return report


def fit(step, rows, path):
    """Fit the step with a checkpoint and return the step and the progress messages."""
    said = []
    return step.fit(rows, lambda fraction, message: said.append(message), checkpoint=path), said


def assert_same(one, other):
    assert one.spec() == other.spec()
    for name, buffer in one.named_buffers():
        np.testing.assert_array_equal(buffer, dict(other.named_buffers())[name], err_msg=name)


def test_a_stopped_fit_resumes_at_the_next_step_and_ends_equal_to_an_uninterrupted_fit(make, rows, tmp_path):
    path, whole = every_step(tmp_path / "fit.safetensors"), make().fit(rows)
    middle = whole.training_log.steps * 3 // 4
    with pytest.raises(Stopped):
        make().fit(rows, stopping(f"step {middle} "), checkpoint=path)
    again, said = fit(make(), rows, path)
    assert f"step {middle + 1} of" in said[0]
    assert_same(again, whole)
    assert again.training_log == whole.training_log


def test_refitting_with_the_checkpoint_of_a_finished_fit_trains_no_step_and_gives_the_same_result(make, rows, tmp_path):
    path = tmp_path / "fit.safetensors"
    whole, said = fit(make(), rows, path)
    again, said_again = fit(make(), rows, path)
    assert said and not said_again
    assert_same(again, whole)
    assert again.training_log == whole.training_log


def test_a_checkpoint_is_written_only_after_its_interval_or_at_the_end_of_the_fit(rows, tmp_path):
    path, make = tmp_path / "fit.safetensors", FITS["geopres"]
    with pytest.raises(Stopped):
        make().fit(rows, stopping("step 11 "), checkpoint=Checkpoint(path, seconds=1e6))
    assert not path.exists()
    make().fit(rows, checkpoint=Checkpoint(path, seconds=1e6))
    assert path.exists()


@pytest.mark.parametrize("unlike", ["parameters", "vectors"])
def test_a_checkpoint_of_another_fit_is_ignored(unlike, embeddings, rows, tmp_path):
    path, make = tmp_path / "fit.safetensors", FITS["geopres"]
    other = GeoPres(4, steps=12, batch=32, seed=1) if unlike == "parameters" else make()
    with pytest.raises(Stopped):
        vectors = embeddings(300, 12, seed=1) if unlike == "vectors" else rows
        other.fit(vectors, stopping("step 5 "), checkpoint=every_step(path))
    again, said = fit(make(), rows, path)
    assert "step 1 of" in said[0]
    assert_same(again, make().fit(rows))


def test_a_full_disk_is_reported_in_each_message_and_does_not_stop_the_fit(make, rows, tmp_path):
    path = tmp_path / "fit.safetensors"
    with files_no_larger_than(100):
        fitted, said = fit(make(), rows, every_step(path))
    assert all(message.endswith(f"s left, no checkpoint in {path.name}: File too large") for message in said)
    assert_same(fitted, make().fit(rows))
    assert list(tmp_path.iterdir()) == []


def test_a_fit_creates_the_folder_of_its_checkpoint_and_raises_if_a_file_has_that_name(rows, tmp_path):
    FITS["geopres"]().fit(rows, checkpoint=tmp_path / "new" / "folder" / "fit.safetensors")
    assert (tmp_path / "new" / "folder" / "fit.safetensors").is_file()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match="File exists|Not a directory"):
        FITS["geopres"]().fit(rows, checkpoint=tmp_path / "file" / "fit.safetensors")


def test_a_stopped_chain_fit_has_one_checkpoint_per_trained_step_and_resumes_in_the_stopped_one(rows, tmp_path):
    def chain():
        return Chain([PCA(8), FITS["geopres"](), FITS["flow"]()])

    with pytest.raises(Stopped):
        chain().fit(rows, on_progress=stopping("flow step 20 "), checkpoints=every_step(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1-geopres.safetensors", "2-flow.safetensors"]
    said = []
    again = chain().fit(rows, on_progress=lambda fraction, message: said.append(message), checkpoints=tmp_path)
    assert [message for message in said if " step " in message][0].startswith("flow step 21 of")
    assert again == chain().fit(rows)
