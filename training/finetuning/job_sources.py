"""Reading of a job's sources, without texts of the target or of the evaluation during training."""

from training.finetuning.evaluators import Development, Task, collect_measured_texts, hold_out, open_development
from training.finetuning.job import Job
from training.finetuning.mixture import Mixture
from training.finetuning.mixture_builder import read_sources
from training.finetuning.opening import open_target


class Sources:
    """Sources of a job, read when the object is created.

    Args:
        job: settings of the job.

    Attributes:
        mixing: mixture under construction, to which mined negatives can be added.

    Raises:
        JobError: if a source cannot be used, or the evaluation during training shares texts with the target's test.
        DataSetError: if a data set that the job names itself cannot be used.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.target = open_target(job.target) if job.target else None
        wanted = job.evaluate
        self.measured = open_development(wanted, self.target) if wanted and wanted.folder else None
        texts = collect_measured_texts(self.measured) if self.measured else ()
        self.mixing = read_sources(job, self.target, measured=texts)

    def split(self) -> tuple[Mixture, Development | None]:
        """Return the mixture to train on, and the evaluation during training; None if the job has none.

        Without a data set to evaluate on, some pairs are held out of the mixture.
        """
        mixture, wanted = self.mixing.finish(), self.job.evaluate
        if wanted is None:
            return mixture, None
        if self.measured is not None:
            return mixture, Task(self.measured, wanted)
        return hold_out(mixture, wanted, self.job.seed)
