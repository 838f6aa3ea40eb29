"""The request of each kind of job: JSON in a folder or in Redis, validated when it is read.

A job is data only: its kind selects a function, see `lathe.service.jobs.process.run_request`, and its request holds
no more than the parameters below.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, ValidationError

from lathe.service.chains.names import is_name
from lathe.service.encoder_settings import NAME_PATTERN
from lathe.service.index.spec import IndexSpec
from lathe.service.jobs.job import INPUT_NAMES, describe_validation_error
from lathe.training.advice.request import AdviceRequest
from lathe.training.deciding.adapt_request import AdaptRequest
from lathe.training.deciding.migrate_request import MigrateRequest
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.finetuning.requests import NewTraining
from lathe.training.fitting.requests import NewFit, SourcedRequest


def _require_input_name(name: str) -> str:
    """Return `name` if it is a file name that jobs read as an input. Raise `ValueError` otherwise.

    Names come from outside, so that any other could be a path to a file that is none of the job's.
    """
    if name not in INPUT_NAMES:
        raise ValueError("no job has an input of that name")
    return name


def _require_generation(spec: IndexSpec) -> IndexSpec:
    if not is_name(spec.generation):
        raise ValueError("no generation has this name")
    return spec


def _require_chain_name(request: AdviceRequest) -> AdviceRequest:
    if request.fit is not None and not is_name(request.fit):
        raise ValueError("no chain has the name in fit")
    return request


InputName = Annotated[str, AfterValidator(_require_input_name)]
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]


class JobRequest(BaseModel):
    """Parameters of a job."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    encoder: EncoderSpec | None

    def to_json(self) -> dict[str, Any]:
        """Return the parameters as a dict for JSON, which `parse_request` reads."""
        return self.model_dump(mode="json")

    @property
    def encoders(self) -> dict[str, EncoderSpec]:
        """Specs of the encoders that the job loads, by field."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: value for name, value in fields.items() if isinstance(value, EncoderSpec)}

    @property
    def paths(self) -> list[str]:
        """Sources that the job reads from outside its folder."""
        return []


class _SourcedJob(JobRequest):
    """A request with the spec of its encoder, and the names of the files that came with it."""

    request: SourcedRequest
    files: tuple[InputName, ...]

    @property
    def paths(self) -> list[str]:
        return [path for path in self.request.paths.values() if path not in self.files]


class FitJob(_SourcedJob):
    """A fit with the specs of the encoders that it names."""

    target_encoder: EncoderSpec | None
    request: NewFit

    @property
    def paths(self) -> list[str]:
        """Sources that the job reads from outside its folder."""
        return super().paths + [path for path in self.request.out_of_domain.values() if path not in self.files]


class AdviseJob(_SourcedJob):
    """An advice request."""

    request: Annotated[AdviceRequest, AfterValidator(_require_chain_name)]


class ReindexJob(JobRequest):
    """Parameters of an index's next generation.

    `text_field` is the metadata field with the texts to encode.
    """

    index: Name
    spec: Annotated[IndexSpec, AfterValidator(_require_generation)]
    text_field: str


class TrainJob(JobRequest):
    """A training with the specs of the encoder to train and of the one that mines negatives."""

    encoder: EncoderSpec
    auxiliary: EncoderSpec
    request: NewTraining


class AdaptJob(_SourcedJob):
    """An adaptation with the spec of its encoder, which it always has."""

    encoder: EncoderSpec
    request: AdaptRequest


class MigrateJob(_SourcedJob):
    """A decision between two encoders, with the specs of both."""

    encoder: EncoderSpec
    new: EncoderSpec
    request: MigrateRequest


AnyJob = FitJob | AdviseJob | ReindexJob | TrainJob | AdaptJob | MigrateJob
KINDS: dict[str, type[AnyJob]] = {
    "fit": FitJob,
    "advise": AdviseJob,
    "reindex": ReindexJob,
    "train": TrainJob,
    "adapt": AdaptJob,
    "migrate": MigrateJob,
}


def parse_request(kind: str, content: bytes) -> AnyJob:
    """Parse and validate the JSON request of a job, and return it as the class of its kind.

    Raises:
        ValueError: if the kind is unknown or the request is damaged; the message quotes nothing of the request.
    """
    if kind not in KINDS:
        raise ValueError(f"there is no kind of job {kind[:40]!r}; there are {', '.join(KINDS)}")
    try:
        return KINDS[kind].model_validate_json(content)
    except ValidationError as error:
        raise ValueError(f"the request of the job is damaged: {describe_validation_error(error)}") from None
