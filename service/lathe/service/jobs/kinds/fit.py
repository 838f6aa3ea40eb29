"""Job that fits a chain of transforms: `POST /fit-transform`."""

from pathlib import Path
from typing import Any

from lathe.service.jobs.job import VECTORS
from lathe.service.jobs.requests import SourcedJob
from lathe.service.settings import Settings
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.fitting.requests import NewFit
from lathe.transforms.progress import Progress


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
