import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import transforms
from transforms import PCA, Autoencoder, Chain, Flow, GeoPres
from transforms.base import Checkpoint, FitContext, TrainingConfig
from transforms.learned.descent import checkpoint_for, mean_of_varied

TENSORS = {
    "steps": torch.tensor(7),
    "loss": torch.tensor(float("nan"), dtype=torch.float64),
    "heldout_losses": torch.zeros(0, dtype=torch.float64),
    "stopped_early": torch.tensor(True),
    "parameter.weight": torch.arange(6.0).view(2, 3).T,  # not contiguous
}


@contextmanager
def files_no_larger_than(size):
    """Let the system refuse, as a full disk would, what goes beyond so many bytes of a file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture
def kept(tmp_path):
    checkpoint = Checkpoint(tmp_path / "fit.safetensors", "key")
    checkpoint.save(TENSORS)
    return checkpoint


def test_what_was_saved_is_loaded_with_its_dtypes_and_shapes(kept):
    found = kept.load()
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        np.testing.assert_array_equal(found[name], tensor)


def test_tensors_that_are_being_trained_are_saved_as_they_are(tmp_path):
    checkpoint = Checkpoint(tmp_path / "fit.safetensors", "key")
    weight = torch.ones(2, 2, requires_grad=True)
    checkpoint.save({"weight": weight})
    assert not checkpoint.load()["weight"].requires_grad
    np.testing.assert_array_equal(checkpoint.load()["weight"], np.ones((2, 2)))


def test_saving_again_replaces_what_was_there_and_leaves_no_other_file(kept):
    kept.save({"steps": torch.tensor(8)})
    assert kept.load() == {"steps": torch.tensor(8)}
    assert [path.name for path in kept.path.parent.iterdir()] == [kept.path.name]


def test_another_fit_finds_nothing_in_it(kept):
    assert Checkpoint(kept.path, "another key").load() is None
    assert kept.load() is not None


def test_a_file_that_is_not_there_is_no_checkpoint(tmp_path):
    assert Checkpoint(tmp_path / "none.safetensors", "key").load() is None
    assert Checkpoint(tmp_path / "no folder" / "none.safetensors", "key").load() is None


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_no_checkpoint(kept, share):
    whole = kept.path.read_bytes()
    kept.path.write_bytes(whole[: int(share * len(whole))])
    assert kept.load() is None


@pytest.mark.parametrize("garbage", [b"\0" * 100, b"\xff" * 100, b"not tensors at all", b"{}", bytes(range(256))])
def test_garbage_is_no_checkpoint(kept, garbage):
    kept.path.write_bytes(garbage)
    assert kept.load() is None


def test_a_file_of_tensors_that_says_nothing_of_a_key_is_no_checkpoint(kept):
    save_file({"steps": torch.tensor(7)}, kept.path)
    assert kept.load() is None


def test_a_folder_in_its_place_is_no_checkpoint(tmp_path):
    (tmp_path / "fit.safetensors").mkdir()
    assert Checkpoint(tmp_path / "fit.safetensors", "key").load() is None


def test_saving_where_there_is_no_folder_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        Checkpoint(tmp_path / "no folder" / "fit.safetensors", "key").save(TENSORS)


def test_a_write_that_fails_half_way_leaves_the_one_before(kept):
    with files_no_larger_than(100), pytest.raises(OSError, match="File too large"):
        kept.save({"steps": torch.tensor(8)})
    assert kept.load().keys() == TENSORS.keys()
    assert [path.name for path in kept.path.parent.iterdir()] == [kept.path.name]


SPEC = {"kind": "geopres", "dimensions": 4}
RECIPE = TrainingConfig(9, 10, 0.1)
ROWS = np.random.default_rng(0).normal(size=(100, 6)).astype(np.float32)


def kept_in(path, spec, vectors, recipe=RECIPE):
    place = None if path is None else Checkpoint(path)
    return checkpoint_for(FitContext(checkpoint=place), spec, recipe, vectors, mean_of_varied("thing", vectors))


def test_another_recipe_has_another_key(tmp_path):
    path = tmp_path / "fit.safetensors"
    assert kept_in(path, SPEC, ROWS, TrainingConfig(8, 10, 0.1)).key != kept_in(path, SPEC, ROWS).key


@pytest.mark.parametrize("same", [ROWS.copy(), torch.from_numpy(ROWS), np.asfortranarray(ROWS)])
def test_the_same_parameters_and_vectors_have_the_same_key(tmp_path, same):
    path = tmp_path / "fit.safetensors"
    assert kept_in(path, dict(reversed(SPEC.items())), same) == kept_in(path, SPEC, ROWS)


def test_a_fit_that_keeps_no_state_has_no_checkpoint():
    assert kept_in(None, SPEC, ROWS) is None


@pytest.mark.parametrize(
    ("spec", "vectors"),
    [
        (SPEC | {"dimensions": 5}, ROWS),
        (SPEC | {"seed": 1}, ROWS),
        (SPEC, ROWS[:-1]),
        (SPEC, ROWS[:, :-1]),
        (SPEC, ROWS + np.float32(1e-3)),
        (SPEC, ROWS[::-1]),
        (SPEC, np.concatenate([ROWS[:-1], ROWS[:1]])),
        (SPEC, np.concatenate([ROWS[:50], ROWS[50:51] + np.float32(1e-3), ROWS[51:]])),
    ],
)
def test_other_parameters_or_vectors_have_another_key(tmp_path, spec, vectors):
    assert kept_in(tmp_path, spec, vectors).key != kept_in(tmp_path, SPEC, ROWS).key


FITS = {
    "geopres": lambda: GeoPres(4, steps=12, batch=32),
    "geopres, nested": lambda: GeoPres(6, nested=True, steps=12, batch=32),
    "geopres, paper": lambda: GeoPres(4, preset="paper", steps=12, batch=32),
    "autoencoder": lambda: Autoencoder(4, steps=40, batch=32),
    "autoencoder, out of patience": lambda: Autoencoder(4, steps=400, batch=32, learning_rate=0.5),
    "flow": lambda: Flow(blocks=2, steps=45, batch=32),
}


class Stopped(Exception):
    """What a caller raises to stop a fit."""


@pytest.fixture
def rows(embeddings):
    return embeddings(300, 12)


def every_step(path):
    """A checkpoint that is written after every step, however long that takes."""
    return Checkpoint(path, seconds=0.0, share=float("inf"))


@pytest.fixture(params=FITS)
def make(request):
    return FITS[request.param]


def stopping(word):
    """Progress that stops a fit at the first message with that word."""

    def report(fraction, message):
        if word in message:
            raise Stopped

    return report


def fit(step, rows, path):
    """The step fitted from a checkpoint, and what it said meanwhile."""
    said = []
    return step.fit(rows, lambda fraction, message: said.append(message), checkpoint=path), said


def assert_same(one, other):
    assert one.spec() == other.spec()
    for name, buffer in one.named_buffers():
        np.testing.assert_array_equal(buffer, dict(other.named_buffers())[name], err_msg=name)


def test_a_fit_that_was_stopped_goes_on_and_ends_as_one_that_was_not(make, rows, tmp_path):
    path, whole = every_step(tmp_path / "fit.safetensors"), make().fit(rows)
    middle = whole.training_log.steps * 3 // 4
    with pytest.raises(Stopped):
        make().fit(rows, stopping(f"step {middle} "), checkpoint=path)
    again, said = fit(make(), rows, path)
    assert f"step {middle + 1} of" in said[0]
    assert_same(again, whole)
    assert again.training_log == whole.training_log


def test_a_fit_that_is_stopped_again_and_again_ends_as_one_that_was_not(rows, tmp_path):
    path, make = every_step(tmp_path / "fit.safetensors"), FITS["autoencoder"]
    whole = make().fit(rows)
    for step in range(1, whole.training_log.steps, 7):
        with pytest.raises(Stopped):
            make().fit(rows, stopping(f"step {step} "), checkpoint=path)
    again, said = fit(make(), rows, path)
    assert len(said) < 7
    assert_same(again, whole)


def test_only_one_of_these_fits_runs_out_of_patience(rows):
    assert [name for name in FITS if FITS[name]().fit(rows).training_log.stopped_early] == [
        "autoencoder, out of patience"
    ]


def test_a_fit_that_was_finished_has_nothing_left_to_do(make, rows, tmp_path):
    path = tmp_path / "fit.safetensors"
    whole, said = fit(make(), rows, path)
    again, said_again = fit(make(), rows, path)
    assert said and not said_again
    assert_same(again, whole)
    assert again.training_log == whole.training_log


def test_between_two_states_on_disk_there_is_some_time(rows, tmp_path):
    path, make = tmp_path / "fit.safetensors", FITS["geopres"]
    with pytest.raises(Stopped):
        make().fit(rows, stopping("step 11 "), checkpoint=Checkpoint(path, seconds=1e6))
    assert not path.exists()
    make().fit(rows, checkpoint=Checkpoint(path, seconds=1e6))
    assert path.exists()


@pytest.mark.parametrize("unlike", ["parameters", "vectors", "damaged"])
def test_what_is_left_of_another_fit_is_ignored(unlike, embeddings, rows, tmp_path):
    path, make = tmp_path / "fit.safetensors", FITS["geopres"]
    other = GeoPres(4, steps=12, batch=32, seed=1) if unlike == "parameters" else make()
    with pytest.raises(Stopped):
        vectors = embeddings(300, 12, seed=1) if unlike == "vectors" else rows
        other.fit(vectors, stopping("step 5 "), checkpoint=every_step(path))
    if unlike == "damaged":
        path.write_bytes(path.read_bytes()[:-10])
    again, said = fit(make(), rows, path)
    assert "step 1 of" in said[0]
    assert_same(again, make().fit(rows))


def test_a_full_disk_is_said_and_stops_nothing(make, rows, tmp_path):
    path = tmp_path / "fit.safetensors"
    with files_no_larger_than(100):
        fitted, said = fit(make(), rows, every_step(path))
    assert all(message.endswith(f"s left, no checkpoint in {path.name}: File too large") for message in said)
    assert_same(fitted, make().fit(rows))
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_checkpoint_is_made_and_a_file_in_its_way_is_an_error(rows, tmp_path):
    FITS["geopres"]().fit(rows, checkpoint=tmp_path / "new" / "folder" / "fit.safetensors")
    assert (tmp_path / "new" / "folder" / "fit.safetensors").is_file()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match="File exists|Not a directory"):
        FITS["geopres"]().fit(rows, checkpoint=tmp_path / "file" / "fit.safetensors")


def test_a_disk_that_is_slow_is_not_written_to_after_every_step(rows, tmp_path):
    written = []

    class Slow(Checkpoint):
        def save(self, tensors):
            time.sleep(0.05)
            written.append(1)

    FITS["geopres"]().fit(rows, checkpoint=Slow(tmp_path / "fit.safetensors", seconds=0.0))
    assert len(written) < 6  # of twelve steps that take no time


def test_a_chain_keeps_a_file_for_every_trained_step_and_goes_on_in_the_midst(rows, tmp_path):
    def chain():
        return Chain([PCA(8), FITS["geopres"](), FITS["flow"]()])

    with pytest.raises(Stopped):
        chain().fit(rows, stopping("flow step 20 "), checkpoints=every_step(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1-geopres.safetensors", "2-flow.safetensors"]
    said = []
    again = chain().fit(rows, lambda fraction, message: said.append(message), checkpoints=tmp_path)
    assert [message for message in said if " step " in message][0].startswith("flow step 21 of")
    assert again == chain().fit(rows)


SCRIPT = """
import sys, time
from pathlib import Path

import numpy as np, torch
from transforms import GeoPres
from transforms.base.checkpoint import Checkpoint

torch.set_num_threads(1)
rows, path, result = sys.argv[1:]


def report(fraction, message):
    print(message, flush=True)
    time.sleep(0.002)


GeoPres(6, nested=True, steps=150, batch=64).fit(
    np.load(rows), report, checkpoint=Checkpoint(Path(path), seconds=0.0, share=float("inf"))
)
np.save(result, 0)
"""


def test_a_killed_process_goes_on_and_ends_as_one_that_was_not(rows, tmp_path):
    paths = [tmp_path / name for name in ("rows.npy", "fit.safetensors", "weight.npy")]
    np.save(paths[0], rows)
    command = [sys.executable, "-c", SCRIPT, *map(str, paths)]
    root = Path(transforms.__file__).parent.parent
    settings = {"cwd": root, "env": os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}, "text": True}
    with subprocess.Popen(command, stdout=subprocess.PIPE, **settings) as process:
        said = [process.stdout.readline() for _ in range(40)]
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert "step 40 of 150" in said[-1]
    assert not paths[2].exists()
    whole, again = (GeoPres(6, nested=True, steps=150, batch=64) for _ in range(2))
    again, said = fit(again, rows, paths[1])
    assert 40 < int(said[0].split()[2]) < 150
    assert_same(again, whole.fit(rows))
