"""What each kind of job is asked to do: JSON that a folder or Redis keeps, checked where it is read.

A job is data: its kind says which row of `service.jobs.runners.RUNNERS` runs it, and its request holds no more than the
parameters below.
"""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, ValidationError

from service.hosted import NAME_PATTERN
from service.index.spec import IndexSpec
from service.jobs.sources import FILE_OF_TARGETS, FILE_OF_TEXTS, FILE_OF_VECTORS
from service.jobs.store import describe
from service.names import is_name
from training.advice.question import Question
from training.encoder.spec import EncoderSpec
from training.fitting.fit_request import FitRequest
from transforms.artifact import MANIFEST, TENSORS

FILE_OF_NEW_TEXTS = "source.texts.json"
INPUT_NAMES = frozenset({FILE_OF_TEXTS, FILE_OF_VECTORS, FILE_OF_TARGETS, FILE_OF_NEW_TEXTS, MANIFEST, TENSORS})
"""The files that may come with a job."""


def require_input_name(name: str) -> str:
    """Return the name of a job's input; raise `ValueError` for any other path."""
    if name not in INPUT_NAMES:
        raise ValueError("no job has an input of that name")
    return name


def require_generation(spec: IndexSpec) -> IndexSpec:
    """Return the settings of an index's generation; raise `ValueError` for one that cannot name a folder."""
    if not is_name(spec.generation):
        raise ValueError("no generation has this name")
    return spec


InputName = Annotated[str, AfterValidator(require_input_name)]
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]


class JobRequest(BaseModel):
    """What a job is asked to do."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    encoder: EncoderSpec | None

    @property
    def encoders(self) -> list[EncoderSpec]:
        """Encoders to load."""
        return [self.encoder] if self.encoder else []

    @property
    def paths(self) -> list[str]:
        """Sources to read that did not come with the job."""
        return []


class FitJob(JobRequest):
    """A chain to fit; `transform` asks for the source's vectors through it."""

    request: FitRequest
    target_encoder: EncoderSpec | None
    transform: bool
    files: tuple[InputName, ...]

    @property
    def encoders(self) -> list[EncoderSpec]:
        """Encoders to load."""
        return [spec for spec in (self.encoder, self.target_encoder) if spec is not None]

    @property
    def paths(self) -> list[str]:
        """Sources to read that did not come with the job."""
        asked = [self.request.source, self.request.targets, *self.request.foreign.values()]
        return [path for path in asked if path is not None and path not in self.files]


class AdviseJob(JobRequest):
    """A question about vectors; `fit` names the chain to make of the advice."""

    question: Question
    fit: Name | None
    files: tuple[InputName, ...]

    @property
    def paths(self) -> list[str]:
        """Sources to read that did not come with the job."""
        return [] if self.question.source in self.files else [self.question.source]


class ReindexJob(JobRequest):
    """The next generation of an index; `text_field` of the metadata holds the texts to encode."""

    index: Name
    spec: Annotated[IndexSpec, AfterValidator(require_generation)]
    text_field: str


KINDS: dict[str, type[FitJob | AdviseJob | ReindexJob]] = {"fit": FitJob, "advise": AdviseJob, "reindex": ReindexJob}


def parse_request(kind: str, content: bytes) -> FitJob | AdviseJob | ReindexJob:
    """Return what a job of a kind is asked to do.

    Raises:
        ValueError: if there is no such kind, or the request is damaged; the message quotes nothing of it.
    """
    if kind not in KINDS:
        raise ValueError(f"there is no kind of job {kind[:40]!r}; there are {', '.join(KINDS)}")
    try:
        return KINDS[kind].model_validate_json(content)
    except ValidationError as error:
        raise ValueError(f"the request of the job is damaged: {describe(error)}") from None
