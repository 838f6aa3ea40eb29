"""Specification of an encoder: model and settings; nothing is loaded here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from training.encoder.precision import Dtype

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


@dataclass(frozen=True)
class EncoderSpec:
    """Model and settings of an encoder.

    Attributes:
        name: name of the encoder for users.
        model: a folder or a Hub id.
        revision: revision of the Hub id.
        pooling: pooling that replaces the model's own; None keeps it.
        layer: number of layers to use, counted from the first; None uses all.
        prompts: texts put before the input, by name; added to the model's own.
        default_prompt_name: name of the prompt used if none is asked for; None keeps the model's default.
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


DEFAULT_ENCODER = EncoderSpec(name="all-MiniLM-L6-v2")
"""Spec of the encoder used if none is named."""


class HasSpace(Protocol):
    """Interface of an encoder whose vector space is known: one loaded here, or the description of a remote one."""

    @property
    def spec(self) -> "EncoderSpec":
        """Spec it was loaded from."""

    @property
    def name(self) -> str:
        """Name of the encoder for users."""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of its vector space."""

    @property
    def dimensions(self) -> int:
        """Dimensions of its vectors, before any chain."""
