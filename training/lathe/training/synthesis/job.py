"""Settings of a synthesis job, which a user writes as YAML.

endpoint: {base_url: "http://localhost:8000/v1", model: qwen2.5-14b-instruct, key_variable: LLM_KEY}
seeds: {jsonl: seeds.jsonl}
queries: 3
stages: {documents: {model: qwen2.5-72b-instruct, max_tokens: 800}}
templates: {folder: prompts}
limits: {concurrency: 8, requests_per_minute: 300, max_tokens: 2000000}
prices: {input: 0.4, output: 1.2}
test_sets: [{folder: data/finance}, {jsonl: held-out.jsonl}]

Paths are relative to the YAML file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import AfterValidator, Field, JsonValue, model_validator

from lathe.training.settings import Count, NotNegative, Positive, StrictSettings

StageName = Literal["personas", "queries", "filter", "documents"]
STAGES: tuple[StageName, ...] = ("personas", "queries", "filter", "documents")
"""Names of the stages, in order."""
RESERVED_FIELDS = ("model", "messages", "stream", "n", "temperature", "max_tokens", "max_completion_tokens")
"""Request fields that users cannot set in `parameters`, because other settings set them, or because they change the
format of the answer."""


def _check_parameters(parameters: dict[str, JsonValue]) -> dict[str, JsonValue]:
    reserved = [name for name in RESERVED_FIELDS if name in parameters]
    if reserved:
        raise ValueError(f"{reserved[0]} cannot be set in parameters: see docs/synthesis.md for the setting to use")
    return parameters


Parameters = Annotated[dict[str, JsonValue], AfterValidator(_check_parameters)]


class EndpointSettings(StrictSettings):
    """Settings of the endpoint that answers the requests.

    Attributes:
        base_url: address that `/chat/completions` is appended to.
        model: name of the model at the endpoint, for stages without a model.
        key_variable: environment variable that holds the key; None for an endpoint without keys.
        timeout: maximum seconds for one whole answer.
        limit_field: name of the request field that limits the tokens of an answer.
        parameters: further fields of every request, such as `top_p`.
    """

    base_url: str
    model: Annotated[str, Field(min_length=1)]
    key_variable: str | None = None
    timeout: Positive = 120.0
    limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    parameters: Parameters = {}


class SeedSettings(StrictSettings):
    """Settings of the seeds: a file of JSON lines, and the names of the fields with question, answer and context.

    The field `context` is optional in the rows.
    """

    jsonl: Path
    question: str = "question"
    answer: str = "answer"
    context: str = "context"


class StageSettings(StrictSettings):
    """Settings of the requests of one stage, and limits on the length of the generated texts.

    Attributes:
        model: name of the model; None for the endpoint's model.
        temperature: sampling temperature; None leaves the temperature out of the request.
        max_tokens: maximum number of tokens of an answer.
        min_characters: minimum length of a text in an answer.
        max_characters: maximum length of a text in an answer.
        parameters: further fields of the request, in addition to the endpoint's parameters.
    """

    model: str | None = None
    temperature: NotNegative | None
    max_tokens: Count
    min_characters: Count
    max_characters: Count
    parameters: Parameters = {}

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if self.min_characters > self.max_characters:
            raise ValueError(f"min_characters {self.min_characters} is more than max_characters {self.max_characters}")
        return self


STAGE_DEFAULTS: Mapping[StageName, Mapping[str, float]] = {
    # A persona says who would ask a question, and for what task. The filter answers yes or no.
    "personas": {"temperature": 1.0, "max_tokens": 400, "min_characters": 20, "max_characters": 1000},
    "queries": {"temperature": 1.0, "max_tokens": 400, "min_characters": 8, "max_characters": 500},
    "filter": {"temperature": 0.0, "max_tokens": 20, "min_characters": 2, "max_characters": 3},
    "documents": {"temperature": 0.7, "max_tokens": 1000, "min_characters": 200, "max_characters": 6000},
}
"""Default settings by stage."""


class StagesSettings(StrictSettings):
    """Settings of the four stages. Missing settings are taken from `STAGE_DEFAULTS`."""

    personas: StageSettings
    queries: StageSettings
    filter: StageSettings
    documents: StageSettings

    @model_validator(mode="before")
    @classmethod
    def _add_defaults(cls, settings: Any) -> Any:
        """Add the defaults of every stage to the settings. Values that are not objects are returned unchanged."""
        if not isinstance(settings, dict):
            return settings
        stages = {
            name: {**defaults, **stage} if isinstance(stage := settings.get(name, {}), dict) else stage
            for name, defaults in STAGE_DEFAULTS.items()
        }
        return settings | stages

    def __getitem__(self, name: StageName) -> StageSettings:
        """Return the settings of a stage by its name."""
        stage: StageSettings = getattr(self, name)
        return stage


class TemplateSettings(StrictSettings):
    """Settings of the prompt templates.

    Attributes:
        folder: folder with the user's templates; shipped templates replace missing ones. None for shipped templates.
        shipped: which shipped templates to use: `full`, or `short` for models with less than about a billion
            parameters, which do not follow the full templates.
    """

    folder: Path | None = None
    shipped: Literal["full", "short"] = "full"


class LimitSettings(StrictSettings):
    """Limits on rate, retries and total requests. All limits may change between runs of a job.

    Attributes:
        concurrency: maximum number of concurrent requests.
        requests_per_minute: maximum rate of requests, spread evenly; None for no limit.
        tokens_per_minute: maximum rate of tokens of prompts and answers; None for no limit.
        retries: maximum number of retries of a request without an answer: status 429 or 5xx, no connection, a
            time-out, or a response that is not an answer.
        backoff: maximum seconds before the first retry. The maximum doubles with every further retry, and the wait is a
            random share of it.
        attempts: maximum number of answers to a call if the answers cannot be used.
        max_requests: number of requests in all runs of a folder at which the run stops; None for no limit.
        max_tokens: number of tokens of prompts and answers in all runs of a folder at which the run stops; None for no
            limit.
    """

    concurrency: Annotated[int, Field(ge=1, le=256)] = 8
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    retries: Annotated[int, Field(ge=0, le=20)] = 6
    backoff: Positive = 1.0
    attempts: Annotated[int, Field(ge=1, le=20)] = 3
    max_requests: Count | None = None
    max_tokens: Count | None = None


class PriceSettings(StrictSettings):
    """Prices of a million tokens of prompts (`input`) and of answers (`output`)."""

    input: NotNegative
    output: NotNegative
    currency: str = "USD"


class HeldOutSettings(StrictSettings):
    """Settings of a test set whose texts must not be trained on: a folder of data sets, or a file of JSON lines.

    Attributes:
        folder: folder of a labelled data set, or of several; their test texts are held out.
        jsonl: file of JSON lines.
        fields: fields of the file's rows whose texts are held out; empty for all fields.
    """

    folder: Path | None = None
    jsonl: Path | None = None
    fields: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_one_location(self) -> Self:
        if (self.folder is None) == (self.jsonl is None):
            raise ValueError("a test set needs either a folder or a jsonl file")
        if self.fields and self.jsonl is None:
            raise ValueError("fields are for a jsonl file; leave fields out for a folder, whose layout names them")
        return self

    @property
    def path(self) -> Path:
        """Path of the folder or file."""
        return cast(Path, self.folder or self.jsonl)


class SynthesisJob(StrictSettings):
    """Settings of one synthesis job.

    Attributes:
        endpoint: endpoint that answers the requests.
        seeds: questions with answers to start from.
        personas: number of personas per seed.
        queries: number of queries per persona.
        filter: whether the model is asked which queries need documents. False keeps every query, for a model that gives
            the same verdict on nearly all queries.
        stages: settings of the stages.
        templates: prompt templates.
        limits: limits on rate, retries and total requests.
        prices: prices for the cost in the report; None for no cost.
        similarity: minimum Jaccard similarity of near duplicates, see near_duplicates.py; questions of a dozen words
            that differ in one word have about 0.5.
        test_sets: test sets whose texts must not occur in the pairs.
        shared_words: minimum length in words of a run in common with a test text at which a text is left out.
    """

    endpoint: EndpointSettings
    seeds: SeedSettings
    personas: Annotated[int, Field(ge=1, le=20)] = 1
    queries: Annotated[int, Field(ge=1, le=20)] = 3
    filter: bool = True
    stages: StagesSettings = StagesSettings.model_validate({})
    templates: TemplateSettings = TemplateSettings()
    limits: LimitSettings = LimitSettings()
    prices: PriceSettings | None = None
    similarity: Annotated[float, Field(gt=0, le=1)] = 0.5
    test_sets: tuple[HeldOutSettings, ...] = ()
    shared_words: Annotated[int, Field(ge=5)] = 13

    def asks(self, name: StageName) -> bool:
        """Return whether a stage sends calls to the model. Only the filter may be turned off."""
        return self.filter or name != "filter"

    def model_of(self, name: StageName) -> str:
        """Return the name of the model for a stage: the stage's model, or else the endpoint's model."""
        return self.stages[name].model or self.endpoint.model

    def parameters_of(self, name: StageName) -> dict[str, Any]:
        """Return the fields of a stage's requests, without `model` and `messages`.

        These are the temperature unless it is None, the token limit, and the parameters of the endpoint and the stage.
        """
        stage = self.stages[name]
        temperature = {} if stage.temperature is None else {"temperature": stage.temperature}
        limit = {self.endpoint.limit_field: stage.max_tokens}
        return temperature | limit | self.endpoint.parameters | stage.parameters
