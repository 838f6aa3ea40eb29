import pytest

from lathe.training.finetuning.run import run_training


@pytest.fixture
def run_job(tmp_path, tiny):
    """Return a function that runs a job into the folder `out`. Ctrl-C can stop it at a step."""

    def finish(job, method="pft", out="out", spec=tiny, stop_at=None):
        def progress(_, sentence):
            if stop_at and sentence.startswith(f"step {stop_at} "):
                raise KeyboardInterrupt

        return run_training(method, job, spec, "cpu", tmp_path / out, progress)

    return finish
