import json

import pytest

from lathe.training.finetuning.job import read_settings
from lathe.training.synthesis.chat import read_endpoint
from lathe.training.synthesis.job import SynthesisJob
from lathe.training.synthesis.run import prepare_job, run_synthesis
from lathe.transforms.progress import no_progress


@pytest.fixture
def write_lines():
    """Return a function that writes JSON lines and returns the path."""

    def write(path, rows):
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return path

    return write


@pytest.fixture
def read_lines():
    """Return a function that reads a file of JSON lines."""
    return lambda path: [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def synthesize(synthesis_job, tmp_path):
    """Return a function that runs a synthesis job with the given settings and returns the outcome."""

    def do(out=None, on_progress=no_progress, **given):
        job = read_settings(synthesis_job(**given), SynthesisJob)
        return run_synthesis(prepare_job(job), read_endpoint(job.endpoint), out or tmp_path / "out", on_progress)

    return do
