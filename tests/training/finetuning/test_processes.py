"""One process of eight pairs a step and two of four: the same targets, losses and model, also when taken up again."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import orjson
import pytest

from tests.helpers import find_free_port
from training.encoder.spec import EncoderSpec
from training.errors import JobError
from training.finetuning.job import Job, TrainingSettings
from training.finetuning.run import run_training
from training.finetuning.trainer import fit_batch_to_processes

RUNS = """
import os, signal, sys
from pathlib import Path
import torch
from matplotlib.figure import Figure
from service.cli.main import main
from training.finetuning import parts, report, trainer
from training.finetuning.job import Job, read_settings
from training.finetuning.run import run_training
from training.encoder.spec import EncoderSpec

torch.set_num_threads(1)
Figure.savefig = lambda _, text, **options: text.write("<svg></svg>")
folder, port = Path(sys.argv[1]), sys.argv[2]

def progress(_, sentence):
    if sentence.startswith("step 9 "):
        if name == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "handed back":
            sys.exit("stopped")

def train(name):
    config = folder / f"{name}.yaml"
    if name == "straight":
        sys.argv = ["lathe", "train", "reze", "--config", str(config), "--out", str(folder / name)]
        try:
            return main()
        except SystemExit as ended:
            assert not ended.code, ended.code
            return
    job = read_settings(config, Job)
    spec = EncoderSpec(name="tiny", model=job.encoder, dtype="float32")
    run_training("reze", job, spec, "cpu", folder / name, progress)

# Forks, as importing all this takes longer than the trainings.
name = "killed"
if (alone := os.fork()) == 0:
    train(name)
os.waitpid(alone, 0)
other = os.fork()
rank = str(int(other == 0))
os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}  # as torchrun does
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
try:
    for name in ["uneven", "straight", "cached", "handed over", "handed back"]:
        train(name)
finally:
    if other:
        os.kill(other, signal.SIGKILL)
        os.wait()
"""
PAIRS, BATCH = 40, 8
WORDS = ["ledger", "lathe", "rain", "committee", "interest", "tomato", "wall", "spring", "bank", "hill"]
TRAINING = {"precision": "float32", "epochs": 2, "log_steps": 1, "checkpoint_steps": 4, "max_length": 12}


pytestmark = [pytest.mark.usefixtures("little_garbage"), pytest.mark.trial]


class Stop(BaseException):
    """Stands for Ctrl-C."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_model):
    """A folder with two sources and a model without dropout, whose noise is each process's own."""
    folder = tmp_path_factory.mktemp("processes")
    shutil.copytree(tiny_model, folder / "model")
    for path in folder.glob("model/**/config.json"):
        settings = orjson.loads(path.read_bytes())
        if "hidden_dropout_prob" in settings:
            path.write_bytes(orjson.dumps(settings | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}))
    for source in "ab":
        rows = [
            {"anchor": f"{source} {WORDS[n % 10]} {n}", "positive": f"{WORDS[n % 7]} {source} of {n // 2}"}
            for n in range(PAIRS // 2)
        ]
        for n, row in enumerate(rows if source == "a" else ()):  # some with hard negatives beside others without
            row["negative"] = [f"{WORDS[n % 3]} of {k}" for k in range(n % 3)]
        (folder / f"{source}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def job_of(folder):
    """A maker of jobs and of their files, for processes of that many pairs a step."""

    def build(name, batch_size, cap=None, **given):
        job = Job.model_validate(
            {
                "encoder": str(folder / "model"),
                "sources": [{"jsonl": folder / f"{source}.jsonl"} for source in "ab"],
                "cap": cap,
                "regularizer": {"scale": 0.5},
                "training": TRAINING | {"batch_size": batch_size} | given,
            }
        )
        (folder / f"{name}.yaml").write_bytes(orjson.dumps(job.model_dump(mode="json", exclude_none=True)))
        return job

    return build


@pytest.fixture(scope="module")
def alone(folder, undrawn):
    """A runner of a job in this process, which can be stopped at its ninth step."""

    def finish(name, job, stop=False):
        def progress(_, sentence):
            if stop and sentence.startswith("step 9 "):
                raise Stop

        spec = EncoderSpec(name="tiny", model=job.encoder, dtype="float32")
        with undrawn():
            return run_training("reze", job, spec, "cpu", folder / name, progress)

    return finish


@pytest.fixture(scope="module")
def done(folder, job_of, alone):
    """Everything that is compared: jobs of one process, then of two, which also finish what one began.

    One job of two is run by the command. At its ninth step one job of one process is killed, and the last of two stops.
    """
    alone("whole", job_of("whole", BATCH))
    with pytest.raises(Stop):
        alone("handed over", job_of("handed over", BATCH), stop=True)
    job_of("killed", BATCH)
    job_of("straight", BATCH // 2)
    job_of("cached", BATCH // 2, mini_batch_size=2)
    job_of("handed back", BATCH // 2)
    job_of("uneven", BATCH // 2, cap=PAIRS // 2 - 1)
    (folder / "runs.py").write_text(RUNS)
    command = [sys.executable, str(folder / "runs.py"), str(folder), str(find_free_port())]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LATHE_")}
    environment |= {"LATHE_HOME": str(folder / "home"), "LATHE_DEVICE": "cpu", "LATHE_THREADS": "1"}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert "stopped" in found.stderr, found.stderr
    (folder / "stdout").write_text(found.stdout)
    return folder


@pytest.fixture
def require_as_whole(done):
    """A check that a job's losses and model are those of one process that never stopped."""
    from sentence_transformers import SentenceTransformer

    def lines(name):
        return [orjson.loads(line) for line in (done / name / "training" / "progress.jsonl").read_bytes().splitlines()]

    def vectors(name):
        return SentenceTransformer(str(done / name / "model"), device="cpu").encode(["the ledger is closed", "rain"])

    def check(name):
        found, expected = lines(name), lines("whole")
        assert [line["step"] for line in found] == list(range(1, 2 * PAIRS // BATCH + 1))
        for one, other in zip(found, expected, strict=True):
            for part in ("contrastive", "regularizer", "grad_norm", "learning_rate"):
                assert one[part] == pytest.approx(other[part], rel=1e-4, abs=1e-6), (part, one, other)
        np.testing.assert_allclose(vectors(name), vectors("whole"), atol=1e-5)

    return check


def test_two_processes_regularise_towards_the_bytes_of_one(done):
    for name in ("relations.npy", "targets.npy", "shrinkage.safetensors"):
        expected = (done / "whole" / "targets" / name).read_bytes()
        assert (done / "straight" / "targets" / name).read_bytes() == expected


@pytest.mark.parametrize("name", ["straight", "cached"])
def test_two_processes_have_the_losses_and_gradients_of_one_with_their_batches(require_as_whole, name):
    require_as_whole(name)


def test_the_command_tells_of_two_processes_once(done):
    assert (done / "stdout").read_text().count("Trained 10 steps") == 1
    assert orjson.loads((done / "straight" / "training.json").read_bytes())["steps"] == 10
    assert not list((done / "straight" / "training").glob("checkpoint-*"))


def test_a_last_batch_that_does_not_come_out_even_is_a_step_too(done):
    lines = [orjson.loads(line) for line in (done / "uneven" / "training" / "progress.jsonl").read_bytes().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 11))  # 38 pairs, 8 a step, twice
    assert all(np.isfinite(line["contrastive"]) for line in lines)


def test_what_one_process_began_two_finish(done, require_as_whole):
    require_as_whole("handed over")
    assert orjson.loads((done / "handed over" / "training.json").read_bytes())["resumed_from"] == 8


def test_what_two_processes_began_one_finishes(done, job_of, alone, require_as_whole):
    assert not (done / "handed back" / "model").exists()
    assert alone("handed back", job_of("handed back", BATCH // 2)).summary["resumed_from"] == 8
    require_as_whole("handed back")


def test_a_killed_run_goes_on_from_its_last_whole_checkpoint(done, job_of, alone, require_as_whole):
    assert not (done / "killed" / "model").exists()
    files = {path.name for path in (done / "killed" / "training").rglob("*")}
    assert "training_args.bin" not in files and "README.md" not in files
    assert alone("killed", job_of("killed", BATCH)).summary["resumed_from"] == 8
    require_as_whole("killed")


def test_processes_that_cannot_share_a_checkpoints_steps_are_refused(monkeypatch):
    settings = TrainingSettings(batch_size=4)
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(JobError, match="steps have 8 pairs, which 3 processes cannot share evenly"):
        fit_batch_to_processes(settings, 8, True)
    assert fit_batch_to_processes(settings, 12, True) == settings
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert fit_batch_to_processes(settings, 8, True) == settings.model_copy(
        update={"batch_size": 8, "mini_batch_size": 4}
    )
    assert fit_batch_to_processes(settings, 8, False) == settings.model_copy(update={"batch_size": 8})
