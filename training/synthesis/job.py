"""A synthesis as a user writes it.

endpoint: {base_url: "http://localhost:8000/v1", model: qwen2.5-14b-instruct, key_variable: LLM_KEY}
seeds: {jsonl: seeds.jsonl}
queries: 3
stages: {documents: {model: qwen2.5-72b-instruct, max_tokens: 800}}
templates: {folder: prompts}
limits: {concurrency: 8, requests_per_minute: 300, max_tokens: 2000000}
prices: {input: 0.4, output: 1.2}
test_sets: [{folder: data/finance}, {jsonl: held-out.jsonl}]

Paths are relative to the file.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator

from training.finetuning.values import Count, NotNegative, Positive, Settings

StageName = Literal["personas", "queries", "filter", "documents"]
STAGES: tuple[StageName, ...] = ("personas", "queries", "filter", "documents")
OURS = ("model", "messages", "stream", "n", "temperature", "max_tokens", "max_completion_tokens")
"""Fields of a request that other settings make, or that change what an answer looks like."""


def without_ours(parameters: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Refuse fields that are not the user's to add."""
    taken = [name for name in OURS if name in parameters]
    if taken:
        raise ValueError(f"{taken[0]} is not set here: see docs/synthesis.md for the setting that makes it")
    return parameters


Parameters = Annotated[dict[str, JsonValue], AfterValidator(without_ours)]


class EndpointSettings(Settings):
    """Who is asked.

    Attributes:
        base_url: what `/chat/completions` is added to.
        model: its name there, where a stage names no other.
        key_variable: the environment variable that holds the key; none for an endpoint without keys.
        timeout: seconds for one whole answer.
        limit_field: how the endpoint calls the limit on an answer's tokens.
        parameters: further fields of every request, such as `top_p`.
    """

    base_url: str
    model: Annotated[str, Field(min_length=1)]
    key_variable: str | None = None
    timeout: Positive = 120.0
    limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    parameters: Parameters = {}


class SeedSettings(Settings):
    """Questions with answers: a file of JSON lines and its fields; `context` may be missing from rows."""

    jsonl: Path
    question: str = "question"
    answer: str = "answer"
    context: str = "context"


class StageSettings(Settings):
    """How one stage is asked, and how long a text it may bring.

    Attributes:
        model: in place of the endpoint's.
        temperature: not sent where it is null.
        max_tokens: of an answer.
        min_characters: of each text in it.
        max_characters: likewise.
        parameters: further fields of the request, beside the endpoint's.
    """

    model: str | None = None
    temperature: NotNegative | None
    max_tokens: Count
    min_characters: Count
    max_characters: Count
    parameters: Parameters = {}

    @model_validator(mode="after")
    def some_length(self) -> Self:
        """Refuse lengths that no text has."""
        if self.min_characters > self.max_characters:
            raise ValueError(f"min_characters {self.min_characters} is more than max_characters {self.max_characters}")
        return self


class PersonaStage(StageSettings):
    """Who would ask, and at what task."""

    temperature: NotNegative | None = 1.0
    max_tokens: Count = 400
    min_characters: Count = 20
    max_characters: Count = 1000


class QueryStage(StageSettings):
    """What they would ask."""

    temperature: NotNegative | None = 1.0
    max_tokens: Count = 400
    min_characters: Count = 8
    max_characters: Count = 500


class FilterStage(StageSettings):
    """Whether a query takes documents to answer: yes or no."""

    temperature: NotNegative | None = 0.0
    max_tokens: Count = 20
    min_characters: Count = 2
    max_characters: Count = 3


class DocumentStage(StageSettings):
    """A passage that answers it."""

    temperature: NotNegative | None = 0.7
    max_tokens: Count = 1000
    min_characters: Count = 200
    max_characters: Count = 6000


class StagesSettings(Settings):
    """The four stages."""

    personas: PersonaStage = PersonaStage()
    queries: QueryStage = QueryStage()
    filter: FilterStage = FilterStage()
    documents: DocumentStage = DocumentStage()

    def __getitem__(self, name: StageName) -> StageSettings:
        """One by its name."""
        found: StageSettings = getattr(self, name)
        return found


class TemplateSettings(Settings):
    """A folder with prompts of the user's own; those that are not in it are the shipped ones."""

    folder: Path


class LimitSettings(Settings):
    """How fast, how stubbornly, how much; all of it can change between runs.

    Attributes:
        concurrency: requests at once.
        requests_per_minute: sent evenly; no limit unless given.
        tokens_per_minute: of prompts and answers, likewise.
        retries: of a request that brought no answer: 429, 5xx, no connection, a time-out, something that is no answer.
        backoff: seconds before the first of these; doubled for each, and drawn at random below that.
        attempts: at an answer that can be used.
        max_requests: in all runs of a folder; the run stops there.
        max_tokens: likewise, of prompts and answers.
    """

    concurrency: Annotated[int, Field(ge=1, le=256)] = 8
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    retries: Annotated[int, Field(ge=0, le=20)] = 6
    backoff: Positive = 1.0
    attempts: Annotated[int, Field(ge=1, le=20)] = 3
    max_requests: Count | None = None
    max_tokens: Count | None = None


class PriceSettings(Settings):
    """Of a million tokens of prompts and of answers."""

    input: NotNegative
    output: NotNegative
    currency: str = "USD"


class HeldOutSettings(Settings):
    """What must not be trained on: data sets of a folder, or the texts of a file of JSON lines.

    Attributes:
        folder: a data set in one of our layouts, or a folder of such: the texts of their tests.
        jsonl: a file.
        fields: of its rows; every text in them unless given.
    """

    folder: Path | None = None
    jsonl: Path | None = None
    fields: tuple[str, ...] = ()

    @model_validator(mode="after")
    def one_place(self) -> Self:
        """Refuse none and both."""
        if (self.folder is None) == (self.jsonl is None):
            raise ValueError("name a folder or a jsonl file, one of them")
        if self.fields and self.jsonl is None:
            raise ValueError("fields are those of a jsonl file; a folder's layout says where its texts are")
        return self


class SynthesisJob(Settings):
    """One synthesis.

    Attributes:
        endpoint: who is asked.
        seeds: what it starts from.
        personas: of each seed.
        queries: of each persona.
        stages: how each is asked.
        templates: the prompts; the shipped ones unless given.
        limits: how fast and how much.
        prices: for the estimate; none without them.
        similarity: of two texts from which they are nearly the same, by their runs of three words (near.py); a question
            of a dozen words with one changed is half alike.
        test_sets: whose texts must not come out.
        shared_words: in a row, that make a text known to a test set.
    """

    endpoint: EndpointSettings
    seeds: SeedSettings
    personas: Annotated[int, Field(ge=1, le=20)] = 1
    queries: Annotated[int, Field(ge=1, le=20)] = 3
    stages: StagesSettings = StagesSettings()
    templates: TemplateSettings | None = None
    limits: LimitSettings = LimitSettings()
    prices: PriceSettings | None = None
    similarity: Annotated[float, Field(gt=0, le=1)] = 0.5
    test_sets: tuple[HeldOutSettings, ...] = ()
    shared_words: Annotated[int, Field(ge=5)] = 13

    def model_of(self, name: StageName) -> str:
        """Who answers a stage."""
        return self.stages[name].model or self.endpoint.model

    def parameters_of(self, name: StageName) -> dict[str, Any]:
        """The fields of a stage's requests beside model and messages."""
        stage = self.stages[name]
        cold = {} if stage.temperature is None else {"temperature": stage.temperature}
        limit = {self.endpoint.limit_field: stage.max_tokens}
        return cold | limit | self.endpoint.parameters | stage.parameters
