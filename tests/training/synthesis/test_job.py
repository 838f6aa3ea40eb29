import re

import pytest

from lathe.training.errors import DataSetError, JobError
from lathe.training.finetuning.job import read_settings
from lathe.training.synthesis.chat import read_endpoint
from lathe.training.synthesis.job import STAGES, EndpointSettings, SeedSettings, SynthesisJob, TemplateSettings
from lathe.training.synthesis.pipeline import read_seeds
from lathe.training.synthesis.templates import FULL, read_templates, write_templates

JOB = """
endpoint: {base_url: "http://localhost:8000/v1", model: small, parameters: {top_p: 0.9}}
seeds: {jsonl: seeds.jsonl}
stages: {documents: {model: large, temperature: null}, queries: {max_tokens: 99}}
test_sets: [{folder: suite}, {jsonl: ../held-out.jsonl, fields: [text]}]
templates: {folder: prompts}
"""


@pytest.fixture
def read(tmp_path):
    """Return a function that writes a job file and reads its settings."""

    def written(text):
        (tmp_path / "job.yaml").write_text(text)
        return read_settings(tmp_path / "job.yaml", SynthesisJob)

    return written


def test_a_synthesis_job_resolves_paths_against_its_folder_and_has_defaults(read, tmp_path):
    job = read(JOB)
    assert (job.seeds.jsonl, job.templates.folder) == (tmp_path / "seeds.jsonl", tmp_path / "prompts")
    assert [one.folder or one.jsonl for one in job.test_sets] == [tmp_path / "suite", tmp_path / "../held-out.jsonl"]
    assert [job.model_of(stage) for stage in STAGES] == ["small", "small", "small", "large"]
    assert job.parameters_of("documents") == {"max_tokens": 1000, "top_p": 0.9}
    assert job.parameters_of("queries") == {"temperature": 1.0, "max_tokens": 99, "top_p": 0.9}


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("seed: {}", "unknown setting seed; did you mean seeds? there are endpoint, seeds, personas"),
        ("stages: {filter: {warmth: 1}}", "unknown setting stages.filter.warmth; there are model, temperature"),
        ("queries: 0", "queries: Input should be greater than or equal to 1, got 0"),
        ("similarity: 0", "similarity: Input should be greater than 0"),
        ("limits: {max_tokens: -1}", "limits.max_tokens: "),
        ("test_sets: [{}]", "test_sets.0: a test set needs either a folder or a jsonl file"),
        ("test_sets: [{folder: a, fields: [b]}]", "test_sets.0: fields are for a jsonl file"),
        ("stages: {documents: {parameters: {stream: true}}}", "parameters: stream cannot be set in parameters"),
        ("stages: {documents: {min_characters: 9999}}", "stages.documents: min_characters 9999 is more than"),
        ("stages: {documents: {parameters: {since: 2026-11-22}}}", "stages.documents.parameters.since"),
        ("prices: {input: 1}", "prices.output is missing"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_allowed_names_or_values(read, written, message):
    with pytest.raises(JobError, match=re.escape(message)):
        read('endpoint: {base_url: "http://a/v1", model: m}\nseeds: {jsonl: a}\n' + written)


def test_open_endpoint_reads_the_key_from_its_environment_variable_and_hides_the_key(monkeypatch):
    monkeypatch.setenv("LLM_KEY", " sk-secret\n")
    settings = EndpointSettings(base_url="https://host:8000/v1/", model="m", key_variable="LLM_KEY")
    endpoint = read_endpoint(settings)
    assert (endpoint.url, endpoint.host, endpoint.key) == ("https://host:8000/v1", "host:8000", "sk-secret")
    assert "sk-secret" not in repr(endpoint)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"base_url": "localhost:8000"}, "must be like http://localhost:8000/v1, not 'localhost:8000'"),
        ({"base_url": "http://"}, "must be like http"),
        ({"base_url": "http://a:b/v1"}, "is not an address"),
        ({"base_url": "https://me:sk-secret@a/v1"}, "holds a name or password"),
        ({"base_url": "https://a/v1?key=sk-secret"}, "must end before any ?"),
        ({"base_url": "https://a/v1/chat/completions"}, "leave /chat/completions out"),
        (
            {"key_variable": "LLM_KEY"},
            "the environment variable LLM_KEY, which endpoint.key_variable names, is not set",
        ),
        ({"key_variable": "sk-secret"}, "takes the name of an environment variable, such as LLM_KEY"),
        ({"key_variable": "ODD_KEY"}, "the key in ODD_KEY has characters that are not printable ASCII"),
    ],
)
def test_an_invalid_endpoint_is_refused_without_showing_the_key(monkeypatch, given, message):
    monkeypatch.delenv("LLM_KEY", raising=False)
    monkeypatch.setenv("ODD_KEY", "sk-secret\nx: y")
    with pytest.raises(JobError, match=re.escape(message)) as raised:
        read_endpoint(EndpointSettings(**{"base_url": "http://a/v1", "model": "m"} | given))
    assert "sk-secret" not in str(raised.value)


def seeds_of(write_lines, tmp_path, *rows, **fields):
    return read_seeds(SeedSettings(jsonl=write_lines(tmp_path / "s.jsonl", rows), **fields))


def test_read_seeds_returns_distinct_seeds_with_their_lines(tmp_path, write_lines):
    rows = [{"q": " Why? ", "answer": "So."}, {"q": "Who?", "answer": "He.", "context": "About him."}]
    found = seeds_of(write_lines, tmp_path, *rows, rows[0], question="q")
    assert [(seed.question, seed.context, seed.place) for seed in found] == [
        ("Why?", "", "s.jsonl line 1"),
        ("Who?", "About him.", "s.jsonl line 2"),
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "s.jsonl has no rows"),
        ([{"question": "a", "answer": "b"}, {"question": "a"}], "no 'answer' at s.jsonl line 2: every seed needs"),
        (
            [{"question": "a", "answer": " "}] * 5,
            "no 'answer' at s.jsonl line 1, s.jsonl line 2, s.jsonl line 3 and 2 more",
        ),
        ([{"q": "a", "answer": "b"}], "no 'question' at s.jsonl line 1: every seed needs"),
        ([{"question": "a", "answer": ["b"]}], "s.jsonl line 1: 'answer' must be a string, not ['b']"),
        (["text"], "s.jsonl line 1: not an object"),
    ],
)
def test_read_seeds_refuses_unusable_seeds_with_their_lines(tmp_path, write_lines, rows, message):
    with pytest.raises((JobError, DataSetError), match=re.escape(message)):
        seeds_of(write_lines, tmp_path, *rows)


@pytest.fixture
def job_with(tmp_path):
    """Return a function that builds a job with its own templates."""

    def build(files, **given):
        for name, text in files.items():
            (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        endpoint = EndpointSettings(base_url="http://a/v1", model="m")
        return SynthesisJob(
            endpoint=endpoint,
            seeds=SeedSettings(jsonl=tmp_path / "s"),
            templates=TemplateSettings(folder=tmp_path),
            **given,
        )

    return build


def test_write_templates_copies_the_shipped_templates_and_never_overwrites(tmp_path, job_with):
    copies = write_templates(tmp_path / "mine")
    assert [path.name for path in copies] == [f"{stage}.txt" for stage in STAGES]
    assert all(path.read_bytes() == (FULL / path.name).read_bytes() for path in copies)
    with pytest.raises(JobError, match="exists already and is not overwritten"):
        write_templates(tmp_path / "mine")
    assert read_templates(job_with({}, personas=5, queries=5)).keys() == set(STAGES)


def test_a_template_in_the_jobs_folder_replaces_the_shipped_one(job_with):
    prompts = read_templates(job_with({"filter.txt": "Is $query worth $$5?"}))
    assert prompts["filter"].fill(query="a $persona $", persona="x") == "Is a $persona $ worth $5?"
    assert prompts["documents"].text == (FULL / "documents.txt").read_text()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"documents.txt": "Write something."}, "the template documents.txt lacks the placeholder $query"),
        ({"personas.txt": "$question?"}, "the template personas.txt lacks the placeholder $answer"),
        ({"queries.txt": "$persona"}, "the template queries.txt lacks the placeholder $count"),
        ({"filter.txt": "$query $price"}, "filter.txt has an unknown placeholder $price; there are $question, $answer"),
        ({"filter.txt": "$query for $5"}, "filter.txt has a $ without a name; write $$ for a dollar sign"),
        ({"filter.txt": b"$query \xff"}, "filter.txt is not UTF-8"),
        ({"query.txt": "$persona"}, "has a template query.txt that no stage uses; templates are personas.txt"),
    ],
)
def test_an_invalid_template_is_refused_with_the_reason(job_with, files, message):
    with pytest.raises(JobError, match=re.escape(message)):
        read_templates(job_with(files))
