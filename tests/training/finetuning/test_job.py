import re
from pathlib import Path

import pytest

from lathe.training.errors import JobError
from lathe.training.finetuning.job import TrainingJob, TrainingSettings, read_settings
from lathe.training.finetuning.regularizers.regularizer import RegularizerSettings

JOB = """
encoder: some-model
cap: 256
overlap: drop
sources:
  - folder: data/finance
    exclude: [tags]
  - jsonl: questions.jsonl
    anchor: question
    positive: answer
    prompts: {anchor: "query: ", positive: "passage: "}
  - hub: some/set
    task: sts
    columns: {sentence1: a, sentence2: b}
target: {folder: ../fiqa}
regularizer: {loss_weight: 0.5, strength: 0.3}
training: {learning_rate: 1e-4, batch_size: 16}
"""
SOURCES = "sources: [{jsonl: a.jsonl}]\n"
UNKNOWN = [
    ("learning_rate: 1\n", "unknown setting learning_rate; there are encoder, sources, cap"),
    ("training: {lr: 1}\n", "unknown setting training.lr; there are learning_rate, batch_size"),
    ("target: {folder: a, prompts: {query: b}}\n", "unknown setting target.prompts.query; there are anchor, positive"),
]
UNKNOWN_OF_SOURCE = [
    ("[{jsonl: a}, {jsonl: b, paths: c}]", "unknown setting sources.1.paths; there are folder, jsonl, rows, hub")
]
WRONG = [
    ("training: {learning_rate: 0}\n", "training.learning_rate: Input should be greater than 0, got 0"),
    ("training: {epochs: .inf}\n", "training.epochs: "),
    ("training: {learning_rate: fast}\n", "training.learning_rate: Input should be a valid number"),
    ("training: {precision: float16}\n", "training.precision: Input should be 'auto', 'float32' or 'bfloat16'"),
    ("training: [1]\n", "training: "),
    ("target: {name: a}\n", "target.folder is missing"),
]
WRONG_SOURCES = [
    ("[]", "sources: "),
    ("[{}]", "sources.0: set exactly one of folder, jsonl, rows and hub; got none"),
    ("[{jsonl: a}, {jsonl: b, folder: c}]", "sources.1: set exactly one of folder, jsonl, rows and hub"),
    ("[{hub: a/b}]", "sources.0: a hub data set needs task: one of "),
    ("[{folder: a, cap: 0}]", "sources.0.cap: "),
]
NOT_SETTINGS = [
    ("a: [", "job.yaml is not YAML: "),
    ("", "job.yaml must hold settings by name, such as sources, not NoneType"),
    ("- a\n- b\n", "job.yaml must hold settings by name, such as sources, not list"),
    ("encoder: a\n", "job.yaml: sources is missing"),
]


@pytest.fixture
def read(tmp_path):
    """Return a function that writes a job file and reads its settings."""

    def written(text, kind=TrainingJob):
        path = tmp_path / "job.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_settings(path, kind)

    return written


@pytest.fixture
def refusal(read):
    """Return a function that returns the message of the `JobError` for a job file."""

    def message(text):
        with pytest.raises(JobError) as caught:
            read(text)
        return str(caught.value)

    return message


def test_read_settings_reads_all_settings_of_a_job_file(read, tmp_path):
    job = read(JOB)
    assert (job.encoder, job.cap, job.overlap) == ("some-model", 256, "drop")
    assert (job.regularizer.loss_weight, job.regularizer.strength, job.regularizer.scale) == (0.5, 0.3, 1.0)
    assert (job.training.learning_rate, job.training.batch_size) == (1e-4, 16)
    folder, file, hub = job.sources
    assert folder.exclude == ("tags",)
    assert (file.anchor, file.positive, file.prompts.anchor, file.prompts.positive) == (
        "question", "answer", "query: ", "passage: ",
    )  # fmt: skip
    assert (hub.hub, hub.task, hub.columns) == ("some/set", "sts", {"sentence1": "a", "sentence2": "b"})


def test_relative_paths_are_resolved_against_the_job_files_folder(read, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    job = read(JOB)
    assert job.sources[0].folder == tmp_path / "data" / "finance"
    assert job.sources[1].jsonl == tmp_path / "questions.jsonl"
    assert job.target is not None and job.target.folder.resolve() == tmp_path.parent / "fiqa"
    assert (job.encoder, job.sources[2].hub) == ("some-model", "some/set")
    assert read("sources: [{folder: /data}, {jsonl: ~/a.jsonl}]").sources[0].folder == Path("/data")
    assert read("sources: [{jsonl: ~/a.jsonl}]").sources[0].jsonl == Path.home() / "a.jsonl"


def test_numbers_are_read_in_any_yaml_notation_and_keys_of_labels_may_be_numbers(read):
    for written in ("1e-4", "0.0001", "'1e-4'"):
        assert read(f"{SOURCES}training: {{learning_rate: {written}}}\n").training.learning_rate == 1e-4
    source = read("sources: [{folder: a, labels: {'0': hawkish, 1: dovish}}]").sources[0]
    assert source.labels == {"0": "hawkish", "1": "dovish"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [(SOURCES + written, f"job.yaml: {reason}") for written, reason in UNKNOWN + WRONG]
    + [(f"sources: {sources}", f"job.yaml: {reason}") for sources, reason in UNKNOWN_OF_SOURCE + WRONG_SOURCES]
    + NOT_SETTINGS,
)
def test_unknown_settings_and_wrong_values_are_refused_by_name_or_with_the_number_of_their_source(
    refusal, text, reason
):
    assert refusal(text).startswith(reason)


def test_a_seed_out_of_range_is_refused(refusal):
    for seed in ("seed: -1", "training: {seed: -1}", "training: {seed: 4294967296}"):
        assert "seed: Input should be " in refusal(SOURCES + seed)


def test_a_job_file_that_is_binary_or_missing_is_refused(refusal, tmp_path):
    assert refusal(b"\xff\xfe\x00").startswith("job.yaml is not YAML: ")
    for path, reason in ((tmp_path / "none.yaml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(JobError, match=f"{re.escape(str(path))}: {reason}"):
            read_settings(path, TrainingJob)


def test_the_default_settings_are_those_of_the_reze_paper():
    training, regularizer = TrainingSettings(), RegularizerSettings()
    assert (training.learning_rate, training.batch_size, training.epochs, training.temperature) == (1e-4, 8, 1, 0.05)
    assert (regularizer.loss_weight, regularizer.scale, regularizer.strength) == (1, 1, 0.7)
    assert (regularizer.variance_ratio, regularizer.center, regularizer.target) == (0.99, "median", "debiased")
