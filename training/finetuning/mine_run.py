"""Mining as a job of its own, and as the first part of a training."""

from dataclasses import replace
from pathlib import Path

from training.encoder.encoder import Encoder
from training.encoder.spec import EncoderSpec
from training.errors import JobError
from training.finetuning.job import Job
from training.finetuning.mining_statistics import Statistics
from training.finetuning.mixing import Mixing
from training.finetuning.page import Page
from training.finetuning.reading import Sources
from training.workspace import exclusive
from transforms.progress import Progress

NEGATIVES = "negatives"


def mine(
    job: Job, auxiliary: EncoderSpec, device: str | None, out: Path, on_progress: Progress
) -> dict[str, Statistics]:
    """Mine the hard negatives of a job, and write the page; a run in the same folder finds them there.

    Raises:
        JobError: if the job does not say how, a source has too few documents, or another job has the folder.
    """
    if job.negatives is None:
        raise JobError("the job says nothing of hard negatives; add negatives: {num_negatives: 3}")
    with exclusive(out, JobError(f"another job is writing to {out}; name another folder with --out")):
        on_progress(0.0, "reading the sources")
        mixing = Sources(job).mixing
        found = mined(mixing, job, auxiliary, device, out, on_progress)
        Page(out, mixing.finish(), None, None, [], found).write()
        return found


def mined(
    mixing: Mixing, job: Job, auxiliary: EncoderSpec, device: str | None, out: Path, on_progress: Progress
) -> dict[str, Statistics]:
    """Give the sources' pairs hard negatives, where the job says how."""
    if job.negatives is None:
        return {}
    from training.finetuning.mined import mine_sources

    encoder = Encoder(replace(auxiliary, dtype="float32", compile=False), device)
    return mine_sources(mixing, job.negatives, encoder, out / NEGATIVES, on_progress)
