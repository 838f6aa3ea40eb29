import pytest

from lathe.training.errors import JobError

pytestmark = pytest.mark.usefixtures("kept_scoring_process")


def test_an_experiment_that_can_measure_nothing_raises_job_error_with_the_reason(settings_of, experiment, tmp_path):
    with pytest.raises(JobError, match="nothing could be measured: tone has 30 training rows"):
        experiment(settings_of(targets=("tone",), rows=(31,), methods=("ft",)), tmp_path)
