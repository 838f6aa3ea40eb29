"""Training by one process and by two: same targets, losses and model, also after a resume."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import orjson
import pytest

from lathe.training.encoder.spec import EncoderSpec
from lathe.training.errors import JobError
from lathe.training.finetuning.job import TrainingJob, TrainingSettings
from lathe.training.finetuning.run import run_training
from lathe.training.finetuning.trainer import fit_batch_to_processes
from tests.helpers import find_free_port

RUNS = """
import os, signal, sys
from pathlib import Path
import torch
from matplotlib.figure import Figure
from lathe.training.finetuning.job import TrainingJob, read_settings
from lathe.training.finetuning.run import run_training
from lathe.training.encoder.spec import EncoderSpec

torch.set_num_threads(1)
Figure.savefig = lambda _, text, **options: text.write("<svg></svg>")
folder, port = Path(sys.argv[1]), sys.argv[2]

def progress(_, sentence):
    if sentence.startswith("step 9 ") and name == "handed back":
        sys.exit("stopped")

# Forks, as importing all this takes longer than the trainings.
other = os.fork()
rank = str(int(other == 0))
os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}  # as torchrun does
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
try:
    for name in ["straight", "handed over", "handed back"]:
        job = read_settings(folder / f"{name}.yaml", TrainingJob)
        spec = EncoderSpec(name="tiny", model=job.encoder, dtype="float32")
        run_training("reze", job, spec, "cpu", folder / name, progress)
finally:
    if other:
        os.kill(other, signal.SIGKILL)
        os.wait()
"""
PAIRS, BATCH = 40, 8
WORDS = ["ledger", "lathe", "rain", "committee", "interest", "tomato", "wall", "spring", "bank", "hill"]
TRAINING = {"precision": "float32", "epochs": 2, "log_steps": 1, "checkpoint_steps": 4, "max_length": 12}


pytestmark = pytest.mark.release


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_model):
    """Return a folder with two sources and a model without dropout, whose noise differs between processes."""
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
    """Return a function that builds a job and its file, for processes of `batch_size` pairs a step."""

    def build(name, batch_size):
        job = TrainingJob.model_validate(
            {
                "encoder": str(folder / "model"),
                "sources": [{"jsonl": folder / f"{source}.jsonl"} for source in "ab"],
                "regularizer": {"scale": 0.5},
                "training": TRAINING | {"batch_size": batch_size},
            }
        )
        (folder / f"{name}.yaml").write_bytes(orjson.dumps(job.model_dump(mode="json", exclude_none=True)))
        return job

    return build


@pytest.fixture(scope="module")
def run_alone(folder, undrawn):
    """Return a function that runs a job in this process. It can be stopped at the ninth step."""

    def finish(name, job, stop=False):
        def progress(_, sentence):
            if stop and sentence.startswith("step 9 "):
                raise KeyboardInterrupt

        spec = EncoderSpec(name="tiny", model=job.encoder, dtype="float32")
        with undrawn():
            return run_training("reze", job, spec, "cpu", folder / name, progress)

    return finish


@pytest.fixture(scope="module")
def trained(folder, job_of, run_alone):
    """Run all jobs that are compared and return their folder: by one process, then by two, which also finish one.

    At its ninth step, one job of one process and the last of two stop.
    """
    run_alone("whole", job_of("whole", BATCH))
    with pytest.raises(KeyboardInterrupt):
        run_alone("handed over", job_of("handed over", BATCH), stop=True)
    job_of("straight", BATCH // 2)
    job_of("handed back", BATCH // 2)
    (folder / "runs.py").write_text(RUNS)
    command = [sys.executable, str(folder / "runs.py"), str(folder), str(find_free_port())]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LATHE_")}
    environment |= {"LATHE_HOME": str(folder / "home"), "LATHE_DEVICE": "cpu", "LATHE_THREADS": "1"}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert "stopped" in found.stderr, found.stderr
    return folder


@pytest.fixture
def require_results_of_one_process(trained):
    """Return a function that compares a job's losses and model with those of one process that never stopped."""
    from sentence_transformers import SentenceTransformer

    def lines(name):
        return [
            orjson.loads(line) for line in (trained / name / "training" / "progress.jsonl").read_bytes().splitlines()
        ]

    def vectors(name):
        return SentenceTransformer(str(trained / name / "model"), device="cpu").encode(["the ledger is closed", "rain"])

    def check(name):
        found, expected = lines(name), lines("whole")
        assert [line["step"] for line in found] == list(range(1, 2 * PAIRS // BATCH + 1))
        for one, other in zip(found, expected, strict=True):
            for part in ("contrastive", "regularizer", "grad_norm", "learning_rate"):
                assert one[part] == pytest.approx(other[part], rel=1e-4, abs=1e-6), (part, one, other)
        np.testing.assert_allclose(vectors(name), vectors("whole"), atol=1e-5)

    return check


def test_two_processes_write_the_same_targets_as_one(trained):
    for name in ("relations.npy", "targets.npy"):
        expected = (trained / "whole" / "targets" / name).read_bytes()
        assert (trained / "straight" / "targets" / name).read_bytes() == expected


def test_two_processes_train_like_one_with_the_batches_of_both(trained, require_results_of_one_process):
    require_results_of_one_process("straight")
    assert not list((trained / "straight" / "training").glob("checkpoint-*"))


def test_two_processes_resume_a_training_of_one_process(trained, require_results_of_one_process):
    require_results_of_one_process("handed over")
    assert orjson.loads((trained / "handed over" / "training.json").read_bytes())["resumed_from"] == 8


def test_one_process_resumes_a_training_of_two_processes(trained, job_of, run_alone, require_results_of_one_process):
    assert not (trained / "handed back" / "model").exists()
    assert run_alone("handed back", job_of("handed back", BATCH // 2)).summary["resumed_from"] == 8
    require_results_of_one_process("handed back")


def test_fit_batch_to_processes_divides_a_checkpoints_batch_and_refuses_uneven_shares(monkeypatch):
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
