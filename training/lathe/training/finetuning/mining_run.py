"""Hard-negative mining as a job of its own, and as the first step of a training."""

from dataclasses import replace
from pathlib import Path

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.errors import JobError
from lathe.training.finetuning.job import TrainingJob
from lathe.training.finetuning.mining_statistics import MiningStatistics
from lathe.training.finetuning.mixture_builder import JobSources, MixtureBuilder
from lathe.training.finetuning.regularizers.none import NoRegularizer
from lathe.training.finetuning.report import Page
from lathe.training.workspace import lock_folder
from lathe.transforms.progress import Progress

NEGATIVES = "negatives"
"""Folder of the mined negatives in the job's folder."""


def run_mining(
    job: TrainingJob, auxiliary: EncoderSpec, device: str | None, out: Path, on_progress: Progress
) -> dict[str, MiningStatistics]:
    """Mine the hard negatives of a job without training.
    Write them and the report to the job's folder, and return the statistics by source.

    The negatives are stored in the job's folder, where a later training finds them.

    Args:
        job: settings of the job.
        auxiliary: spec of the encoder to mine with.
        device: device to encode on; None for the best there is.
        out: the job's folder.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        JobError: if the job has no settings for mining, a source has too few documents, or another job uses the folder.
        DataSetError: if a data set or corpus cannot be read.
    """
    if job.negatives is None:
        raise JobError("the job says nothing of hard negatives; add negatives: {num_negatives: 3}")

    with lock_folder(out, JobError(f"another job is writing to {out}; name another folder with --out")):
        on_progress(0.0, "reading the sources")
        builder = JobSources(job).builder
        statistics = mine_if_configured(builder, job, auxiliary, device, out, on_progress)
        Page(out, builder.build(), NoRegularizer(), [], statistics).write()
        return statistics


def mine_if_configured(
    builder: MixtureBuilder,
    job: TrainingJob,
    auxiliary: EncoderSpec,
    device: str | None,
    out: Path,
    on_progress: Progress,
) -> dict[str, MiningStatistics]:
    """Mine hard negatives and add them to the builder's pairs, if the job has settings for it.
    Return the statistics by source, an empty dict without settings.

    The auxiliary encoder is loaded. Negatives are stored in the job's folder; those that it holds already are reused.

    Returns:
        the statistics by source; empty if the job has no settings for mining.

    Raises:
        JobError: if no source is to be mined, a source has too few documents, a stored line is damaged, or a vector is
            zero or not finite.
        DataSetError: if a corpus cannot be read.
    """
    if job.negatives is None:
        return {}
    from lathe.training.finetuning.source_mining import mine_sources

    encoder = Encoder(replace(auxiliary, dtype="float32", compile=False), device)
    return mine_sources(builder, job.negatives, encoder, out / NEGATIVES, on_progress)
