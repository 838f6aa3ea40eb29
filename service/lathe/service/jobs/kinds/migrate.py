"""Job that decides whether another encoder is worth it: `POST /migrate`."""

from pathlib import Path
from typing import Any

from lathe.service.jobs.requests import SourcedJob
from lathe.service.settings import Settings
from lathe.training.deciding.requests import MigrateRequest
from lathe.training.encoder.spec import EncoderSpec
from lathe.transforms.progress import Progress


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
