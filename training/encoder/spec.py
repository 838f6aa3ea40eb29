"""Which encoder is meant, and how it is read; nothing is loaded here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from training.encoder.precision import Dtype

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
Pooling = Literal["mean", "cls", "max", "lasttoken"]
Attention = Literal["auto", "eager", "sdpa", "flash_attention_2"]
Side = Literal["left", "right"]


@dataclass(frozen=True)
class EncoderSpec:
    """Which model, and how it is read.

    Attributes:
        name: what users call it.
        model: a folder or a hub id.
        revision: of the hub id.
        pooling: None keeps the model's own.
        layer: use only this many of its layers; None uses all.
        prompts: texts put before the input, by name; joins the model's own.
        default_prompt_name: of the prompt used where none is asked for; None keeps the model's own default.
        max_length: in tokens; None keeps the model's own.
        dtype: what the transformer runs in, `auto` is bfloat16 where the hardware has it; pooling and normalising
            are float32 always.
        attention: the implementation; `auto` is flash attention, which needs no padding, where it is installed and
            the model runs in half precision on a GPU, else the library's choice.
        compile: let torch.compile make faster kernels; the first batches take minutes then.
        trust_remote_code: run code that the model's repository brings.
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
    trust_remote_code: bool = False


DEFAULT_ENCODER = EncoderSpec(name="all-MiniLM-L6-v2")


class HasSpace(Protocol):
    """What vectors belong to: an encoder here, or what is known of one elsewhere."""

    @property
    def spec(self) -> "EncoderSpec":
        """As it was loaded."""

    @property
    def name(self) -> str:
        """What users call it."""

    @property
    def fingerprint(self) -> str:
        """What tells its space from others."""

    @property
    def dimensions(self) -> int:
        """Its own width."""
