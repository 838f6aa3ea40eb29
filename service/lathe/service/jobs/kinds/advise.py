"""Job that decides in what form to store vectors, and may fit the decision's chain: `POST /advise`."""

from pathlib import Path
from typing import Any

from lathe.service.jobs.job import REPORT
from lathe.service.jobs.requests import SourcedJob
from lathe.service.settings import Settings
from lathe.training.deciding.requests import AdviceRequest
from lathe.training.errors import TrainingError
from lathe.transforms.errors import TransformError
from lathe.transforms.files import write_synced
from lathe.transforms.progress import Progress, part_of

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
