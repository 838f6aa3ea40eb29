"""Interface of what turns texts into vectors: a model that is loaded here, or an embeddings API."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lathe.training.encoder.spec import HasSpace, LongText, Side
from lathe.training.errors import EncoderError


@dataclass(frozen=True)
class Encoding:
    """Vectors of texts `(n, d)` in float32, tokens of each text `(n,)`, and the number computed including padding.

    Attributes:
        cut: number of tokens of each text that were not read `(n,)`, estimated for texts that were not tokenized whole;
            None if unknown.
    """

    vectors: NDArray[np.float32]
    tokens: NDArray[np.int64]
    padded: int = 0
    cut: NDArray[np.int64] | None = None


class TextEncoder(HasSpace, Protocol):
    """Encoder of texts; see `lathe.training.encoder.encoder.Encoder` and `lathe.training.encoder.upstream.encoder`.

    Attributes:
        max_length: tokens that it reads of a text, special tokens included.
        prompts: prompts by name.
    """

    max_length: int
    prompts: dict[str, str]

    @property
    def device(self) -> str:
        """Name of the torch device on which chains of its vectors are fitted."""

    @property
    def vectors_key(self) -> str:
        """Key under which its vectors are stored offline: the fingerprint, and whether long texts are means."""

    def describe(self) -> dict[str, Any]:
        """Return spec, fingerprint, dimensions, maximum length and prompts as a dict for the artifact's metadata."""

    def prompt(self, prompt_name: str | None) -> str | None:
        """Return the text of a prompt; None takes the default prompt, and returns None if there is no default.

        Raises:
            EncoderError: if there is no prompt of that name.
        """

    def encode(
        self,
        texts: Sequence[str],
        prompt_name: str | None = None,
        long_text: LongText | None = None,
        truncation_side: Side = "right",
        normalize: bool = True,
        on_batch: Callable[[int], None] | None = None,
        plain: bool = False,
    ) -> Encoding:
        """Encode texts to vectors `(n, d)` float32 in the order given.

        Args:
            texts: any number of strings.
            prompt_name: one of `prompts`; None takes the default.
            long_text: what becomes of a text that is too long: it is truncated, raises, or is encoded as the mean of
                its chunks; None takes the spec's.
            truncation_side: the end that is cut off.
            normalize: whether vectors are L2-normalized.
            on_batch: called with the number of texts done so far.
            plain: whether texts get no prompt at all, not even the default.

        Raises:
            EncoderError: for an unknown prompt, or a text that cannot be encoded.
        """


def find_prompt(encoder: str, prompts: Mapping[str, str], name: str | None) -> str | None:
    """Return the text of an encoder's prompt; None if `name` is None.

    Args:
        encoder: name of the encoder, for messages.
        prompts: prompts by name.
        name: name of the prompt.

    Raises:
        EncoderError: if there is no prompt of that name.
    """
    if name is None:
        return None
    if name not in prompts:
        known = ", ".join(sorted(prompts)) or "none"
        raise EncoderError(f"{encoder} has no prompt {name!r}; there are: {known}")
    return prompts[name]
