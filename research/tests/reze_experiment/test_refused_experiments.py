import shutil

import pytest

from lathe.training.errors import JobError

pytestmark = pytest.mark.usefixtures("kept_scoring_process")


def test_an_experiment_that_can_measure_nothing_raises_job_error_with_the_reason(settings_of, experiment, tmp_path):
    with pytest.raises(JobError, match="nothing could be measured: tone has 30 training rows"):
        experiment(settings_of(targets=("tone",), rows=(31,), methods=("ft",)), tmp_path)


def test_two_targets_of_one_name_are_refused(settings_of, experiment, tiny_data, tmp_path):
    shutil.copytree(tiny_data / "tone", tmp_path / "data" / "tone")
    with pytest.raises(JobError, match="called tone"):  # as of two sources
        experiment(settings_of(("tone", tmp_path / "data" / "tone"), rows=(), methods=("ft",)), tmp_path / "out")


def test_a_folder_in_use_by_another_experiment_is_refused(settings_of, experiment, tmp_path):
    from filelock import FileLock

    with FileLock(tmp_path / ".lock"), pytest.raises(JobError, match="another experiment is writing"):
        experiment(settings_of(), tmp_path)
