"""Specification of an encoder: the model and its settings.

Nothing is loaded here. Settings of an embeddings API are validated here, because user settings are parsed directly into
`UpstreamSpec`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, field_validator, model_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass

from lathe.training.encoder.devices import Dtype
from lathe.training.endpoint import check_variable_name, is_loopback, split_address

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
"""Hub id of the model used if none is named."""

Pooling = Literal["mean", "cls", "max", "lasttoken"]
"""Poolings that can replace a model's own."""

Attention = Literal["auto", "eager", "sdpa", "flash_attention_2"]
"""Attention implementations; see `EncoderSpec.attention`."""

LongText = Literal["truncate", "error", "mean"]
"""What becomes of a text that is longer than the model reads; see `EncoderSpec.long_text`."""

ChatTemplate = Literal["on", "off"]
"""Whether texts are wrapped in a model's chat template; see `EncoderSpec.chat_template`."""

Side = Literal["left", "right"]
"""End of a text, left or right."""


SearchSide = Literal["query", "document"]
"""What a text is in a search: a query or a document."""

UpstreamProtocol = Literal["openai", "cohere"]
"""Protocols of embeddings APIs; see `lathe.training.encoder.upstream.protocols`."""


UPSTREAM_PATHS: dict[UpstreamProtocol, str] = {"openai": "/embeddings", "cohere": "/embed"}
"""Path that each protocol appends to the address of an API."""
UPSTREAM_EXAMPLES: dict[UpstreamProtocol, str] = {
    "openai": "https://api.openai.com/v1",
    "cohere": "https://api.cohere.com/v2",
}
"""Example of an API address for each protocol, for messages."""


@dataclass(frozen=True)
class StoreSettings:
    """Folder in which vectors are stored, and the maximum number of bytes of the store. 0 bytes store no vectors."""

    folder: Path
    max_bytes: int = 10_000_000_000


@dataclass(frozen=True)
class VectorStores:
    """Settings of the two stores of vectors: answers of embeddings APIs, and vectors that local models computed.

    The stores are separate, because an API's answers cost money, and computed vectors cost only time.

    Attributes:
        upstream: vectors that embeddings APIs answered.
        encoded: vectors of models that are loaded here.
    """

    upstream: StoreSettings
    encoded: StoreSettings


@pydantic_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class UpstreamSpec:
    """Embeddings API that encodes the texts instead of a model that is loaded.

    Attributes:
        url: address that the protocol's path, such as `/embeddings`, is appended to.
        protocol: protocol of the API.
        model: name of the model at the API.
        api_key_env: environment variable that holds the key; None for an API without keys.
        dimensions: dimensions to ask for; None leaves them to the API.
        batch_size: maximum texts of a call.
        concurrency: maximum calls at once, of each process.
        requests_per_minute: maximum calls a minute, of each process; None for no limit.
        tokens_per_minute: maximum tokens a minute, of each process; None for no limit.
        timeout: seconds for a whole answer.
        provider: name of the API's provider, a part of the embedding space id; None takes host and path of the address.
        price: price of a million tokens, to count the cost; None if unknown.
        probe_seconds: seconds after which a call first compares the vectors of a few probe texts with earlier ones.
    """

    url: str
    protocol: UpstreamProtocol
    model: Annotated[str, Field(min_length=1)]
    api_key_env: str | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    batch_size: Annotated[int, Field(ge=1, le=2048)] = 64
    concurrency: Annotated[int, Field(ge=1, le=256)] = 8
    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    tokens_per_minute: Annotated[int, Field(ge=1)] | None = None
    timeout: Annotated[float, Field(gt=0, le=3600)] = 60.0
    provider: Annotated[str, Field(min_length=1)] | None = None
    price: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    probe_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 600.0

    @field_validator("api_key_env")
    @classmethod
    def check_variable(cls, variable: str | None) -> str | None:
        """Raise `ValueError` if `api_key_env` is not a valid name of an environment variable. None passes.

        The message does not quote the value, which may be a key. The value is returned unchanged.
        """
        return None if variable is None else check_variable_name(variable, "api_key_env")

    @model_validator(mode="after")
    def check_address(self) -> "UpstreamSpec":
        """Raise `ValueError` if the API's address is invalid, ends with the protocol's path, or would leak the key.

        A key may be sent over https, or over http to this machine. The spec is returned unchanged.
        """
        path, example = UPSTREAM_PATHS[self.protocol], UPSTREAM_EXAMPLES[self.protocol]
        parts = split_address(self.url, "url", example)
        if parts.path.rstrip("/").endswith(path):
            raise ValueError(f"url must not end with {path}, which is appended to it: write an address like {example}")
        if self.api_key_env is not None and parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise ValueError("with api_key_env, url must begin with https:// or lead to this machine")
        return self

    @property
    def provider_name(self) -> str:
        """`provider`, or the host of `url` with its port if it names one."""
        return self.provider or urlsplit(self.url).netloc.lower()

    @property
    def identity(self) -> str:
        """`provider`, or host and path of `url`. Behind one host, paths can lead to the models of different tenants."""
        parts = urlsplit(self.url)
        return self.provider or f"{parts.netloc.lower()}{parts.path.rstrip('/')}"

    def describe(self) -> dict[str, Any]:
        """Return the provider, protocol and dimensions as a dict.

        The address and key are left out, as any user may see it.
        """
        return {"provider": self.provider_name, "protocol": self.protocol, "dimensions": self.dimensions}


@dataclass(frozen=True)
class EncoderSpec:
    """Model and settings of an encoder.

    Attributes:
        name: name of the encoder for users.
        model: a folder or a Hub id.
        revision: revision of the Hub id.
        pooling: pooling that replaces the model's own; None keeps it.
        layer: number of layers to use, counted from the first; None uses all.
        prompts: texts put before the input, by name; added to the prompts of the model.
        default_prompt_name: name of the prompt used if a call names none; None keeps the model's default.
        max_length: tokens read of a text, special tokens included; None keeps the model's own.
        dtype: dtype of the transformer; `auto` is bfloat16 if the hardware supports it, else float32. Pooling and
            normalization are always in float32.
        attention: attention implementation; `auto` is flash attention, which needs no padding, if it is installed and
            the model runs in half precision on a GPU, else the library's choice.
        compile: whether torch.compile compiles the transformer; the first batches then take minutes.
        long_text: what becomes of a text that is longer than the model reads, unless a call says otherwise: it is
            truncated, an error, or encoded as the mean of the vectors of its chunks.
        chat_template: whether texts are wrapped in the chat template of an instruct model; None does what
            sentence-transformers does, which wraps them if there is one, and warns of it.
        trust_remote_code: whether code from the model's repository is run.
        upstream: embeddings API that encodes the texts; None if the model is loaded here. With an API, `model` is the
            model's name there, `revision` is a version that the user sets, and settings of a loaded model have no
            effect.
    """

    name: str
    model: str = DEFAULT_MODEL
    revision: str | None = None
    pooling: Pooling | None = None
    layer: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    max_length: int | None = None
    dtype: Dtype = "float32"
    attention: Attention = "auto"
    compile: bool = False
    long_text: LongText = "truncate"
    chat_template: ChatTemplate | None = None
    trust_remote_code: bool = False
    upstream: UpstreamSpec | None = None

    def __post_init__(self) -> None:
        if isinstance(self.upstream, Mapping):  # from JSON
            object.__setattr__(self, "upstream", UpstreamSpec(**self.upstream))

    def to_json(self) -> dict[str, Any]:
        """Return all fields as a JSON-compatible dict, from which `EncoderSpec(**fields)` builds an equal spec.

        The key `upstream` is left out if it is None.
        """
        fields = asdict(self)
        return {name: value for name, value in fields.items() if name != "upstream" or value is not None}


DEFAULT_ENCODER = EncoderSpec(name="all-MiniLM-L6-v2")
"""Spec of the encoder used if none is named."""
