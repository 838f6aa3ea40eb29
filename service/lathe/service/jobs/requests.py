"""What a job is asked to do: JSON in a folder or in Redis, validated when it is read.

A job is data only: its kind selects a class of `lathe.service.jobs.kinds`, whose fields are all that a request holds.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from lathe.service.errors import BadValueError
from lathe.service.jobs.job import INPUT_NAMES, describe_validation_error
from lathe.service.settings import Settings
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.fitting.requests import SourcedRequest
from lathe.transforms.progress import Progress

if TYPE_CHECKING:
    from lathe.training.encoder.text_encoder import TextEncoder

KINDS = {
    "fit": "lathe.service.jobs.kinds.training:FitJob",
    "advise": "lathe.service.jobs.kinds.training:AdviseJob",
    "reindex": "lathe.service.jobs.kinds.reindex:ReindexJob",
    "train": "lathe.service.jobs.kinds.training:TrainJob",
    "adapt": "lathe.service.jobs.kinds.training:AdaptJob",
    "migrate": "lathe.service.jobs.kinds.training:MigrateJob",
    "calibrate": "lathe.service.jobs.kinds.calibrate:CalibrateJob",
    "checkup": "lathe.service.jobs.kinds.checkup:CheckupJob",
}
"""Class of each kind of job, which is imported when a request of the kind is read: a worker imports none."""


def _require_input_name(name: str) -> str:
    """Return `name` if it is a file name that jobs read as an input. Raise `ValueError` otherwise.

    Names come from outside, so that any other could be a path to a file that is none of the job's.
    """
    if name not in INPUT_NAMES:
        raise ValueError("no job has an input of that name")
    return name


InputName = Annotated[str, AfterValidator(_require_input_name)]
AnyRequest = TypeVar("AnyRequest", bound=SourcedRequest)


class JobRequest(BaseModel, ABC):
    """Parameters of a job, and what it does with them."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    encoder: EncoderSpec | None

    @abstractmethod
    def run(self, folder: Path, settings: Settings, on_progress: Progress) -> dict[str, Any]:
        """Run the job in its folder, and return the result as JSON.

        Args:
            folder: folder with the job's input files, to which result files are written; its name is the job's id.
            settings: settings of the process.
            on_progress: called with progress in [0, 1] and a message.
        """

    def to_json(self) -> dict[str, Any]:
        """Return the parameters as a dict for JSON, which `parse_request` reads."""
        return self.model_dump(mode="json")

    @property
    def encoders(self) -> dict[str, EncoderSpec]:
        """Specs of the encoders that the job loads, by field."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: value for name, value in fields.items() if isinstance(value, EncoderSpec)}

    def load_encoders(self, settings: Settings) -> "dict[str, TextEncoder]":
        """Load the encoders of the job with the device and the vector stores of the settings, by field."""
        from lathe.training.encoder.opening import open_encoder

        return {
            field: open_encoder(spec, settings.device, settings.vector_stores) for field, spec in self.encoders.items()
        }

    @property
    def paths(self) -> list[str]:
        """Sources that the job reads from outside its folder."""
        return []


class SourcedJob(JobRequest, Generic[AnyRequest]):
    """A request with the spec of its encoder, and the names of the files that came with it."""

    request: AnyRequest
    files: tuple[InputName, ...]

    @property
    def paths(self) -> list[str]:
        """Sources that the job reads from outside its folder."""
        return [path for path in self.request.paths.values() if path not in self.files]

    def locate_inputs(self, folder: Path) -> AnyRequest:
        """Return the request with paths in the job's folder for the files that were sent with the request."""
        from lathe.training.sources.shards import RootedFile

        sent = {field: path for field, path in self.request.paths.items() if path in self.files}
        return self.request.with_paths({field: str(RootedFile(folder, path)) for field, path in sent.items()})


def parse_request(kind: str, content: bytes) -> JobRequest:
    """Parse and validate the JSON request of a job by its kind. Raise `BadValueError` if it is damaged.

    The message of the error quotes nothing of the request.

    Raises:
        BadValueError: if the kind is unknown or the request is damaged; the message quotes nothing of the request.
    """
    if kind not in KINDS:
        raise BadValueError(f"there is no kind of job {kind[:40]!r}; there are {', '.join(KINDS)}")
    job_class: type[JobRequest] = resolve_name(KINDS[kind])
    try:
        return job_class.model_validate_json(content)
    except ValidationError as error:
        raise BadValueError(f"the request of the job is damaged: {describe_validation_error(error)}") from None
