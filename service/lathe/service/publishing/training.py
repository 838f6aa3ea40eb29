"""Training of an encoder up to its published version: shared by `lathe train` with a name and by the job."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lathe.service.encoder_settings import AddedEncoders
from lathe.service.encoders.trained import digest_files
from lathe.service.errors import BadValueError, ConflictError
from lathe.service.publishing.context import PublishContext
from lathe.service.settings import Settings
from lathe.service.waiting import wait_for_redis
from lathe.training.encoder.spec import DEFAULT_ENCODER, EncoderSpec
from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.errors import JobError
from lathe.training.finetuning.requests import NewTraining
from lathe.training.fitting.requests import list_failed_gates
from lathe.training.workspace import claim_workspace_folder, digest
from lathe.transforms.progress import Progress, part_of

if TYPE_CHECKING:
    from lathe.training.finetuning.job import TrainingJob

TRAINING_SHARE = 0.9
"""Share of the progress for the training; the rest certifies and publishes."""

DISK_FULL = "the disk is full: a training takes several times the bytes of its model; its checkpoints were deleted"
"""Error of a training that needs more space than there is."""
DISK_FULL_SIGNS = ("no space left", "os error 28", "pytorchstreamwriter failed")
"""Parts of the messages by which safetensors and torch say that the disk is full."""

OUT_OF_MEMORY = "the training ran out of memory: set a smaller batch_size, mini_batch_size or max_length in training"
"""Error of a training that needs more memory than there is."""


def train_encoder(
    request: NewTraining, context: PublishContext, on_progress: Progress, *, base: EncoderSpec, auxiliary: EncoderSpec
) -> dict[str, Any]:
    """Train an encoder or resume its training, certify it, and publish it as the next version of its name.

    Returns `{encoder: "name@1", promoted, failed_gates, certificate}`. A stopped training is resumed from its last
    checkpoint, as long as its work folder exists. The work folder is deleted once the version is published, or a week
    after the training was stopped.

    Args:
        request: what to train, under which name.
        context: trained encoders, folders and provenance.
        on_progress: called with progress in [0, 1] and a message.
        base: spec of the encoder to train.
        auxiliary: spec of the encoder that negatives are mined with.

    Raises:
        JobError: if the training cannot be done as described, or runs out of memory or of space on the disk.
        ServiceError: if the name cannot be used.
    """
    job = request.check()
    require_trainable(base)
    trained = context.trained
    published = wait_for_redis(partial(trained.find_published, request.name, context.job), on_progress)

    if published is None:
        from lathe.training.finetuning.run import MODEL, SUMMARY, run_training

        key = digest(request.name, request.method, request.job, base.to_json())[:32]
        with claim_workspace_folder(context.home.training, key) as folder:
            if context.on_work_folder is not None:
                context.on_work_folder(folder)
            with _explain_exhaustion(folder):
                is_trained = (folder / MODEL).is_dir() and (folder / SUMMARY).is_file()
                if not is_trained:  # an earlier run may have been stopped later
                    progress, device = part_of(on_progress, 0.0, TRAINING_SHARE), context.settings.device
                    run_training(request.method, job, base, device, folder, progress, auxiliary, holds_out=True)
                manifest = _certify(request, job, base, context, folder, part_of(on_progress, TRAINING_SHARE, 1.0))
            on_progress(1.0, "publishing")
            failed_gates = list_failed_gates(request.gates, manifest["certificate"])
            promote = False if failed_gates else request.promote
            publish = partial(trained.publish, request.name, folder / MODEL, manifest, promote, context.job)
            version, live = wait_for_redis(publish, on_progress)
        certificate = manifest["certificate"]
    else:
        version, live = published, trained.live(request.name) == published
        certificate = trained.manifest(request.name, version)["certificate"]
        failed_gates = list_failed_gates(request.gates, certificate)

    return {
        "encoder": f"{request.name}@{version}",
        "promoted": live,
        "failed_gates": failed_gates,
        "certificate": certificate,
    }


@contextmanager
def _explain_exhaustion(folder: Path) -> Iterator[None]:
    """Raise `JobError` for an error about full memory or a full disk. For a full disk, delete the checkpoints."""
    try:
        yield
    except Exception as error:  # each library has its own kinds of error for a full disk
        message = str(error).lower()
        if any(sign in message for sign in DISK_FULL_SIGNS):
            shutil.rmtree(folder / "training", ignore_errors=True)
            shutil.rmtree(folder / ".model", ignore_errors=True)
            raise JobError(DISK_FULL) from error
        # torch raises its own kind of error on a GPU, and a plain RuntimeError on a CPU.
        if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "memory" in message):
            raise JobError(OUT_OF_MEMORY) from error
        raise


def _certify(
    request: NewTraining,
    job: "TrainingJob",
    base_spec: EncoderSpec,
    context: PublishContext,
    folder: Path,
    on_progress: Progress,
) -> dict[str, Any]:
    """Certify the trained encoder in the work folder against its base, and return the manifest of its version."""
    import orjson

    from lathe.training.encoder.encoder import Encoder
    from lathe.training.finetuning.certificate import certify_job, read_job_tests
    from lathe.training.finetuning.run import MODEL, SUMMARY

    summary: dict[str, Any] = orjson.loads((folder / SUMMARY).read_bytes())
    model = folder / MODEL
    digest_files(model)  # refuses files that no version may have, before minutes of certifying
    on_progress(0.0, "reading the tests")
    tests = read_job_tests(job)
    device = context.settings.device
    base = Encoder(replace(base_spec, dtype="float32", compile=False), device)
    spec = EncoderSpec(request.name, str(model), long_text=base_spec.long_text, chat_template=base_spec.chat_template)
    trained = Encoder(spec, device)
    certificate = certify_job(base, trained, tests, context.home.vectors, on_progress)

    provenance = {
        "command": context.command,
        "job": request.job,
        "gates": request.gates,
        "training": summary,
        "libraries": summary.get("libraries"),
        "date": summary.get("date"),
    }
    return build_manifest(request.method, base, trained, certificate, provenance)


def build_manifest(
    method: str,
    base: TextEncoder,
    trained: TextEncoder,
    certificate: dict[str, Any],
    provenance: dict[str, Any],
) -> dict[str, Any]:
    """Build the manifest of a trained encoder's version, without name, version and files.

    `TrainedEncoders.publish` adds these.
    """
    described = trained.describe()
    return {
        "method": method,
        "base": base.describe(),
        "encoder": {key: described[key] for key in ("fingerprint", "dimensions", "max_length", "prompts")},
        "certificate": certificate,
        "provenance": provenance,
    }


def require_trainable(base: EncoderSpec) -> None:
    """Raise `BadValueError` for an encoder behind an embeddings API, or with code of its own.

    Such an encoder cannot be trained into a version.
    """
    if base.upstream is not None:
        raise BadValueError(f"{base.name} is behind an embeddings API, which cannot be trained", param="job.encoder")
    if base.trust_remote_code:
        raise BadValueError(
            f"{base.name} has code of its own, which no version may have: train it into a folder, with --out",
            param="job.encoder",
        )


def require_free_name(name: str, settings: Settings) -> None:
    """Raise `ConflictError` if an encoder of the settings or of the state folder has this name already."""
    others = {encoder.name for encoder in (*settings.hosted, *AddedEncoders(settings.home).read())}
    if name in others | {DEFAULT_ENCODER.name}:
        raise ConflictError(f"the name {name} is in use by another encoder", param="name")
