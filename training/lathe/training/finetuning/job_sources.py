"""Reading of a job's sources, without texts of the target or of the evaluation during training."""

from lathe.training.finetuning.evaluators import (
    Evaluator,
    TaskEvaluator,
    collect_measured_texts,
    hold_out,
    open_evaluation_data,
)
from lathe.training.finetuning.job import Job
from lathe.training.finetuning.mixture import Mixture
from lathe.training.finetuning.mixture_builder import read_sources
from lathe.training.finetuning.opening import open_target


class JobSources:
    """Sources of a job, read when the object is created.

    Args:
        job: settings of the job.

    Attributes:
        builder: mixture under construction, to which mined negatives can be added.

    Raises:
        JobError: if a source cannot be used, or the evaluation during training shares texts with the target's test.
        DataSetError: if a data set that the job names itself cannot be used.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.target = open_target(job.target) if job.target else None
        settings = job.evaluate
        self.evaluated = open_evaluation_data(settings, self.target) if settings and settings.folder else None
        texts = collect_measured_texts(self.evaluated) if self.evaluated else ()
        self.builder = read_sources(job, self.target, evaluated=texts)

    def split(self) -> tuple[Mixture, Evaluator | None]:
        """Return the mixture to train on, and the evaluation during training; None if the job has none.

        Without a data set to evaluate on, some pairs are held out of the mixture. With one, its test is read, and
        mteb's evaluator runs once on random vectors.

        Raises:
            JobError: if no source has enough pairs to hold some out, or mteb does not measure the metric on the data
                set.
            DataSetError: if the data set cannot be read.
        """
        mixture, settings = self.builder.build(), self.job.evaluate
        if settings is None:
            return mixture, None
        if self.evaluated is not None:
            return mixture, TaskEvaluator(self.evaluated, settings)
        return hold_out(mixture, settings, self.job.seed)
