import json
import shutil

import numpy as np
import pytest
import torch

from tests.helpers import require_one_line

pytestmark = [
    pytest.mark.usefixtures("scoring_here"),
    pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning"),
]

WORDS = ["profit", "ledger", "sparrow", "tulip", "kettle", "soup", "debt", "loan", "robin", "hedge"]
TEXTS = [f"On day {n} the {WORDS[n % 10]} was lost, and {WORDS[n % 7]} was never seen again." for n in range(60)]
PAIRS = [{"anchor": f"what of {WORDS[n % 10]} {n}?", "positive": f"the {WORDS[n % 10]} of {n}"} for n in range(20)]
LABELLED = [{"text": f"a {WORDS[n % 10]} of {n}", "label": ["money", "garden"][n % 2]} for n in range(20)]
TOPICS = [{"text": f"some {WORDS[n % 10]} in {n}", "label": ["money", "garden"][n % 2]} for n in range(20)]
QUICK = {"precision": "float32", "max_length": 16, "log_steps": 2}


def write(path, rows):
    """Write rows to a JSON-lines file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.fixture(scope="module", autouse=True)
def restore_threads(tmp_path_factory):
    """Restore the number of torch threads after the commands that set it."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder of two classifications, one of which shares a text with the other's test, and a file of pairs."""
    root = tmp_path_factory.mktemp("data")
    for name, train, test in (
        ("tone", LABELLED[:14], LABELLED[14:]),
        ("topic", [*TOPICS, LABELLED[19] | {"text": LABELLED[19]["text"].upper()}], TOPICS),
    ):
        write(root / "sets" / name / "META.json", [{"task": "classification"}])
        write(root / "sets" / name / "train.jsonl", train)
        write(root / "sets" / name / "test.jsonl", test)
    write(root / "pairs.jsonl", PAIRS)
    write(root / "gaps.jsonl", [*PAIRS[:2], {"anchor": "why?"}, PAIRS[3], {"anchor": "how?", "positive": " "}])
    (root / "texts.txt").write_text("\n".join(TEXTS))
    return root


@pytest.fixture(scope="module")
def job(data, tiny_model):
    """Return a function that writes a job file beside the data, with paths relative to it, and returns its path."""

    def build(name="job", **given):
        wanted = {
            "encoder": str(tiny_model),
            "sources": [{"folder": "sets"}, {"jsonl": "pairs.jsonl"}],
            "training": QUICK,
        }
        path = data / f"{name}.yaml"
        path.write_text(json.dumps(wanted | given))  # JSON is YAML
        return path

    return build


@pytest.fixture
def train(run):
    """Run `lathe train` in this process."""

    def command(*arguments):
        return run("train", *arguments, LATHE_DEVICE="cpu", LATHE_THREADS=1)

    return command


def test_train_reze_prints_its_sources_the_overlap_and_the_models_folder(train, job, tiny_model, tmp_path, caplog):
    """The model differs from its base, and the folder takes no other."""
    from sentence_transformers import SentenceTransformer

    out, config = tmp_path / "out", job(target={"folder": "sets/tone"}, overlap="drop")
    status, printed, err = train("reze", "--config", config, "--out", out)
    assert status == 0, err
    assert "reze: there are two sources" in caplog.text and "add a third source" in caplog.text
    assert err.splitlines()[-1] == f"Serve it with: lathe encoders add NAME --model {out / 'model'}"
    lines = printed.splitlines()
    rows = {line.split()[0]: line for line in lines if line.startswith(("source", "tone", "topic", "pairs"))}
    assert list(rows) == ["source", "tone", "topic", "pairs"]
    assert "the target, left out" in rows["tone"] and "1 shares a text with the target" in rows["topic"]
    assert any(line.startswith("Note: there are two sources") for line in lines)
    assert lines[-1].startswith("Trained 5 steps in ") and lines[-1].endswith(f"the model is in {out / 'model'}")
    assert {path.name for path in out.iterdir()} >= {"model", "job.json", "training.json"}
    models = [SentenceTransformer(str(folder), device="cpu") for folder in (tiny_model, out / "model")]
    before, after = (model.encode(TEXTS[:4]) for model in models)
    assert before.shape == after.shape and 1e-5 < np.abs(before - after).max() < 1
    assert [model.max_seq_length for model in models] == [32, 32]
    require_one_line(train("reze", "--config", config, "--out", out), "already holds a trained model", "--out")


@pytest.mark.parametrize("method", ["distill", pytest.param("ft", marks=pytest.mark.release)])
def test_train_methods_write_to_a_folder_named_after_job_and_method_by_default(
    train, job, data, tiny_model, method, tmp_path, monkeypatch
):
    """The path of the encoder is relative to the job's file."""
    shutil.copytree(tiny_model, data / "models" / "tiny_model", dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    config = job("mine", encoder="./models/tiny_model", sources=[{"jsonl": "pairs.jsonl"}])
    status, printed, err = train(method, "--config", config)
    assert status == 0, err
    out = tmp_path / f"mine-{method}"
    assert json.loads((out / "training.json").read_text())["method"] == method
    assert (out / "model" / "model.safetensors").is_file()
    assert printed.splitlines()[-1].startswith("Trained 3 steps")
    assert (out / "targets").is_dir() == (method == "distill")


def test_a_training_mines_hard_negatives_that_its_job_asks_for(train, job, tmp_path, tiny_model):
    negatives = {"model": str(tiny_model), "num_negatives": 2, "relative_margin": None}
    config = job("mining", sources=[{"jsonl": "pairs.jsonl"}], negatives=negatives)
    status, printed, err = train("pft", "--config", config, "--out", tmp_path / "out")
    assert status == 0, err
    (cells,) = (line.split() for line in printed.splitlines() if line.startswith("pairs"))
    assert "40" in cells
    assert json.loads((tmp_path / "out" / "training.json").read_text())["negatives"] == 40


def test_train_prints_one_line_and_writes_no_model_for_an_invalid_job(train, job, tmp_path):
    for given, *words in [
        ({"sauces": []}, "unknown setting sauces", "there are encoder, sources"),
        ({"training": {"learning_rate": 0}}, "training.learning_rate", "greater than 0", "got 0"),
        ({"sources": [{"jsonl": "absent.jsonl"}]}, "absent"),
        ({"sources": [{"jsonl": "gaps.jsonl"}]}, "no 'positive' at gaps.jsonl line 3, gaps.jsonl line 5"),
        ({"target": {"folder": "sets/tone"}}, "share texts with the test set of tone: topic (1 pairs)", "drop"),
        ({"encoder": "./absent/model"}, "the encoder model (", "absent/model) cannot be loaded"),
    ]:
        require_one_line(train("reze", "--config", job("wrong", **given), "--out", tmp_path / "out"), *words)
    require_one_line(train("reze", "--config", tmp_path / "odd.yaml", "--out", tmp_path / "out"), "No such file")
    assert not (tmp_path / "out" / "model").exists()


def test_train_with_a_name_publishes_versions_that_encoders_shows_promotes_and_deletes(train, run, job):
    config = str(job("named", training=QUICK | {"batch_size": 4}))
    status, printed, error = train(
        "pft", "--config", config, "--name", "versioned", "--gate", "out_of_domain.pydoc.ndcg_at_10.gain=-1"
    )
    assert status == 0, error
    assert printed.splitlines()[-1] == "versioned@1 is live"
    assert "pydoc" in printed
    status, printed, error = train("pft", "--config", config, "--name", "versioned", "--no-promote")
    assert status == 0 and printed.splitlines()[-1].startswith("versioned@2 is stored; to make it live: lathe encoders")

    assert "version 1" in run("encoders", "list")[1]
    assert json.loads(run("encoders", "show", "versioned@2")[1])["live"] == 1
    assert run("encoders", "promote", "versioned@2")[1].strip() == "versioned@2 is live"
    assert run("encoders", "rollback", "versioned")[1].strip() == "versioned@1 is live"
    assert run("encoders", "delete", "versioned@1")[0] != 0  # it is live
    assert run("encoders", "delete", "versioned@2")[1].strip() == "versioned@2 is deleted"
    assert run("encoders", "promote", "versioned@1", "--gate", "recall=1")[0] != 0
    assert train("pft", "--config", config, "--name", "all-MiniLM-L6-v2")[0] != 0


def test_train_refuses_gates_without_a_name_and_a_name_with_a_folder(train, job):
    require_one_line(train("pft", "--config", str(job()), "--gate", "a=1"), "--name")
    require_one_line(train("pft", "--config", str(job()), "--name", "x", "--out", "y"), "exclude each other")
