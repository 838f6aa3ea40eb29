"""A job's sources, without what the target and the measures on the way must not have been trained on."""

from training.finetuning.datasets import open_target
from training.finetuning.development import Development, Task, hold_out, measured_texts, open_development
from training.finetuning.job import Job
from training.finetuning.mixing import read_sources
from training.finetuning.mixture import Mixture


class Sources:
    """The sources of a job, read.

    Args:
        job: the settings.

    Raises:
        JobError: if a source cannot be used, or what is measured on the way is the target.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.target = open_target(job.target) if job.target else None
        wanted = job.evaluate
        self.measured = open_development(wanted, self.target) if wanted and wanted.folder else None
        texts = measured_texts(self.measured) if self.measured else ()
        self.mixing = read_sources(job, self.target, measured=texts)

    def split(self) -> tuple[Mixture, Development | None]:
        """What is trained on, and what the model is measured on meanwhile; None where the job measures nothing."""
        mixture, wanted = self.mixing.finish(), self.job.evaluate
        if wanted is None:
            return mixture, None
        if self.measured is not None:
            return mixture, Task(self.measured, wanted)
        return hold_out(mixture, wanted, self.job.seed)
