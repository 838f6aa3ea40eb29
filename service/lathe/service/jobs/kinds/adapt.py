"""Job that tries what judged searches can improve, and publishes the recommended change: `POST /adapt`."""

from pathlib import Path
from typing import Any

from lathe.service.jobs.kinds.train import JobTrainingLog
from lathe.service.jobs.requests import SourcedJob
from lathe.service.jobs.sources import resolve_allowed_folder
from lathe.service.settings import Settings
from lathe.training.deciding.requests import AdaptRequest
from lathe.training.encoder.spec import EncoderSpec
from lathe.transforms.progress import Progress


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
