"""Jobs that fit and decide on sources of texts or vectors, and that train encoders, with the log of what they train."""

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lathe.service.jobs.job import LOG, REPORT, VECTORS
from lathe.service.jobs.requests import JobRequest, SourcedJob
from lathe.service.jobs.sources import locate_data_sets, resolve_allowed_folder
from lathe.service.settings import Settings
from lathe.training.deciding.requests import AdaptRequest, AdviceRequest, MigrateRequest
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.errors import TrainingError
from lathe.training.finetuning.requests import NewTraining
from lathe.training.fitting.requests import NewFit
from lathe.transforms.errors import TransformError
from lathe.transforms.files import write_synced
from lathe.transforms.progress import Progress, part_of


class FitJob(SourcedJob[NewFit]):
    """A fit with the specs of the encoders that it names."""

    target_encoder: EncoderSpec | None

    @property
    def paths(self) -> list[str]:
        """Sources that the job reads from outside its folder."""
        return super().paths + [path for path in self.request.out_of_domain.values() if path not in self.files]

    def run(self, folder: Path, settings: Settings, on_progress: Progress) -> dict[str, Any]:
        """Fit the chain and publish it.

        Returns the dict of `run_fit`. With `transform`, the source's vectors, transformed by the chain, are written to
        the job's folder, and the result also has their `vectors_url`.
        """
        from lathe.service.publishing.context import PublishContext
        from lathe.service.publishing.fits import run_fit

        on_progress(0.0, "loading the encoder")
        encoders = self.load_encoders(settings)
        context = PublishContext.open(settings, "POST /fit-transform", job=folder.name, on_progress=on_progress)
        result = run_fit(
            self.locate_inputs(folder),
            context,
            on_progress,
            encoder=encoders.get("encoder"),
            target_encoder=encoders.get("target_encoder"),
            vectors_to=folder / VECTORS if self.request.transform else None,
        )
        return result | ({"vectors_url": f"/jobs/{folder.name}/vectors"} if self.request.transform else {})


ADVICE_SHARE = 0.6
"""Share of the progress bar that the advice takes in a job that then fits; the fit takes the rest."""


class AdviseJob(SourcedJob[AdviceRequest]):
    """An advice request."""

    def run(self, folder: Path, settings: Settings, on_progress: Progress) -> dict[str, Any]:
        """Advise in what form to store the source's vectors, write `report.html` to the folder, and return the advice.

        If the request names a chain to fit, the decision's chain is fitted too, and its result is under `fit`. If that
        fails, the advice is returned all the same, with `fit` None and the reason in `fit_error`.
        """
        from lathe.service.publishing.context import PublishContext
        from lathe.service.publishing.fits import run_fit
        from lathe.training.deciding.advise import advise, build_recommended_fit
        from lathe.training.deciding.advise_report import render_html, to_json

        request, name = self.locate_inputs(folder), self.request.fit
        share = ADVICE_SHARE if name else 1.0
        on_progress(0.0, "loading the encoder")
        encoder = self.load_encoders(settings).get("encoder")
        advice = advise(request, encoder, part_of(on_progress, 0.0, share))
        write_synced(folder / REPORT, render_html(advice).encode())
        result = to_json(advice) | {"report_url": f"/jobs/{folder.name}/report"}

        if name:
            fitting = part_of(on_progress, share, 1.0)
            try:
                context = PublishContext.open(settings, "POST /advise", job=folder.name)
                fit = build_recommended_fit(advice, name, request)
                result["fit"] = run_fit(fit, context, fitting, encoder=encoder)
            except (TrainingError, TransformError) as error:  # the advice holds all the same
                result |= {"fit": None, "fit_error": str(error)}
        return result


class MigrateJob(SourcedJob[MigrateRequest]):
    """A decision between two encoders, with the specs of both."""

    encoder: EncoderSpec
    new: EncoderSpec

    def run(self, folder: Path, settings: Settings, on_progress: Progress) -> dict[str, Any]:
        """Decide whether the other encoder is worth it, and return the decision as JSON."""
        from lathe.training.deciding.migrate import decide_migration

        on_progress(0.0, "loading the encoders")
        encoders = self.load_encoders(settings)
        present, new = encoders["encoder"], encoders["new"]
        return decide_migration(self.locate_inputs(folder), present, new, on_progress).to_json()


WRITTEN = "training/progress.jsonl"
"""Path of the log in the folder of a training, which lies in a work folder or is one."""

COPY_SECONDS = 0.25
"""Minimum seconds between two searches of the work folder: progress is reported after each batch."""


class TrainJob(JobRequest):
    """A training with the specs of the encoder to train and of the one that mines negatives."""

    encoder: EncoderSpec
    auxiliary: EncoderSpec
    request: NewTraining

    def run(self, folder: Path, settings: Settings, on_progress: Progress) -> dict[str, Any]:
        """Train the encoder and publish it.

        Returns the dict of `train_encoder`, with the `log_url` of the training log. The training log is copied to the
        job's folder each time it grows.
        """
        from lathe.service.publishing.context import PublishContext
        from lathe.service.publishing.training import require_free_name, train_encoder

        require_free_name(self.request.name, settings)
        self.request.check()
        # A link may have appeared since the request came.
        located = locate_data_sets(self.request.job, settings.data_root)
        request = self.request.model_copy(update={"job": located})
        log = JobTrainingLog(folder)
        names = [request.name]
        context = PublishContext.open(settings, "POST /train", names, folder.name, log.watch, on_progress)
        reporting = log.follow(on_progress)
        result = train_encoder(request, context, reporting, base=self.encoder, auxiliary=self.auxiliary)
        return result | {"log_url": f"/jobs/{folder.name}/log"}


class JobTrainingLog:
    """Copies the log of the running training to a job's folder.

    Args:
        folder: folder of the job.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work_folder: Path | None = None
        self.copied_at = 0.0

    def watch(self, work_folder: Path) -> None:
        """Set the folder below which trainings write their logs."""
        self.work_folder = work_folder

    def follow(self, on_progress: Progress) -> Callable[[float, str], None]:
        """Return a progress callback that passes progress on and copies a grown log every `COPY_SECONDS`."""

        def report(fraction: float, message: str) -> None:
            if time.monotonic() - self.copied_at >= COPY_SECONDS:
                with suppress(OSError):  # a disk that is full does not stop the training
                    self._copy()
                self.copied_at = time.monotonic()
            on_progress(fraction, message)

        return report

    def _copy(self) -> None:
        """Copy the newest training log below the work folder, unless the copy has its size already."""
        logs = [] if self.work_folder is None else list(self.work_folder.glob(f"**/{WRITTEN}"))
        if not logs:
            return
        log = max(logs, key=lambda path: path.stat().st_mtime)
        target = self.folder / LOG
        if not target.exists() or log.stat().st_size != target.stat().st_size:
            staging = self.folder / f".{LOG}"
            shutil.copyfile(log, staging)
            staging.replace(target)


class AdaptJob(SourcedJob[AdaptRequest]):
    """An adaptation with the spec of its encoder, which it always has."""

    encoder: EncoderSpec

    def run(self, folder: Path, settings: Settings, on_progress: Progress) -> dict[str, Any]:
        """Try what judged searches can improve, and publish the recommended change if the request has a name.

        Returns the dict of `lathe.service.publishing.adaptations.Adaptation.to_json`.
        """
        from lathe.service.publishing.adaptations import run_adaptation
        from lathe.service.publishing.context import PublishContext

        request = self.locate_inputs(folder)
        for path in request.folders:  # a link may have appeared since the request came
            resolve_allowed_folder(path, settings.data_root, "folders")
        on_progress(0.0, "loading the encoder")
        encoder = self.load_encoders(settings)["encoder"]
        log = JobTrainingLog(folder)
        names = [request.name] if request.name else []
        context = PublishContext.open(settings, "POST /adapt", names, folder.name, log.watch, on_progress)
        return run_adaptation(request, encoder, context, log.follow(on_progress)).to_json()
