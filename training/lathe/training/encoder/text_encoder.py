"""Interface of encoders, which turn texts into vectors: loaded models and embeddings APIs.

Texts are valid Unicode: Python strings can hold half of a surrogate pair, which no tokenizer or API reads. Vectors are
finite: a text whose vector has NaN or inf raises an error. Vectors may be compared only if the ids of their embedding
spaces are equal.
"""

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from lathe.training.encoder.spec import EncoderSpec, LongText, SearchSide, Side
from lathe.training.errors import EncoderError, NotFiniteError, TextError
from lathe.training.workspace import digest

SIDE_PROMPTS: dict[SearchSide, tuple[str, ...]] = {
    "query": ("query", "search_query"),
    "document": ("document", "passage", "corpus", "search_document"),
}
"""Names of the prompts for queries and for documents, as sentence-transformers and model cards call them."""
ROUTED = "encodes queries and documents by different modules"
"""Phrase for messages about encoders with separate routes for queries and documents."""
NO_PROMPT = ""
"""Prompt name that means no prompt, not even the default prompt."""


AnyEncoder = TypeVar("AnyEncoder", bound="TextEncoder")


@dataclass(frozen=True)
class Encoding:
    """Vectors of texts, and the numbers of their tokens.

    Attributes:
        vectors: vectors `(n, d)` in float32.
        tokens: number of tokens of each text `(n,)`.
        padded: number of tokens computed, padding included.
        cut: number of tokens of each text that were not read `(n,)`, estimated for texts that were not tokenized whole;
            None if unknown.
    """

    vectors: NDArray[np.float32]
    tokens: NDArray[np.int64]
    padded: int = 0
    cut: NDArray[np.int64] | None = None


class PromptedEncoder:
    """Base class of encoders and of their descriptions: embedding space, prompts, and the key of stored vectors.

    Attributes:
        spec: spec of the encoder.
        fingerprint: fingerprint of the encoder's embedding space.
        prompts: prompts by name.
        dimensions: dimensions of the vectors, before any chain of transforms.
        default_prompt_name: name of the prompt for texts that name none; None for none.
        routed: whether queries and documents are encoded by different modules, which the prompt name chooses.
    """

    spec: EncoderSpec
    fingerprint: str
    dimensions: int
    prompts: dict[str, str]
    default_prompt_name: str | None
    routed: bool = False

    @property
    def name(self) -> str:
        """Name of the encoder as users know it."""
        return self.spec.name

    @property
    def vectors_key(self) -> str:
        """Key under which the encoder's vectors are stored offline.

        The key consists of the fingerprint, a mark if long texts are means of chunks, and a hash of the default prompt,
        if there is one.
        """
        # The fingerprint does not cover these two settings, which change the vectors of the same model.
        key = self.fingerprint
        if self.spec.long_text == "mean":
            key += "-mean"
        if prompt := self.prompt_key(None):
            key += f"-{digest(prompt)[:8]}"
        return key

    def prompt(self, prompt_name: str | None) -> str | None:
        """Return the text of a named or the default prompt, or None without a prompt. An unknown name raises.

        The result is None for `NO_PROMPT`, or if there is no default prompt.

        Raises:
            EncoderError: if there is no prompt of that name.
        """
        name = self.default_prompt_name if prompt_name is None else prompt_name
        if name is None or name == NO_PROMPT:
            return None
        if name not in self.prompts:
            known = ", ".join(sorted(self.prompts)) or "none"
            raise EncoderError(f"{self.name} has no prompt {name!r}; there are: {known}")
        return self.prompts[name]

    def prompt_key(self, prompt_name: str | None) -> str | None:
        """Return the text of a prompt as a part of keys of stored vectors. None means no prompt.

        For a routed encoder, `query` or `document` and a null character are put before the text.
        """
        prompt, side = self.prompt(prompt_name), self.find_side(prompt_name)
        return prompt if side is None else f"{side}\0{prompt or ''}"

    def find_side(self, prompt_name: str | None) -> SearchSide | None:
        """Return whether the `query` or the `document` modules encode texts with a prompt, or None if not routed.

        A prompt that belongs to neither gets the modules of the default prompt, or else the modules for documents.
        """
        if not self.routed:
            return None
        sides = {name: side for side, names in SIDE_PROMPTS.items() for name in names}
        return sides.get(prompt_name or "") or sides.get(self.default_prompt_name or "", "document")

    def with_default_prompt(self, prompt_name: str) -> Self:
        """Return a copy of the encoder with another default prompt. The copy shares the model or connection.

        Raises:
            EncoderError: if there is no prompt of that name.
        """
        self.prompt(prompt_name)
        encoder = copy.copy(self)
        encoder.default_prompt_name = prompt_name
        return encoder

    @staticmethod
    def _require_unicode(texts: Sequence[str]) -> None:
        """Raise `TextError` for the first text with a lone surrogate, which `json.loads` makes of a truncated emoji."""
        for position, text in enumerate(texts):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                code = ord(text[error.start])
                raise TextError(
                    f"character {error.start} is \\u{code:04x}, half of a surrogate pair without the other", position
                ) from None


class TextEncoder(PromptedEncoder, ABC):
    """Base class of the encoders of texts.

    Attributes:
        max_length: tokens that the encoder reads of a text, special tokens included.
        device: name of the torch device on which chains of transforms are fitted to the encoder's vectors.
    """

    max_length: int
    device: str

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the encoder's settings as a dict for the metadata of a fitted chain of transforms.

        Keys are the fields of `spec`, and `fingerprint`, `dimensions`, `max_length` and `prompts`.
        """

    @abstractmethod
    def encode(
        self,
        texts: Sequence[str],
        prompt_name: str | None = None,
        long_text: LongText | None = None,
        truncation_side: Side = "right",
        normalize: bool = True,
        on_batch: Callable[[int], None] | None = None,
    ) -> Encoding:
        """Encode texts to vectors `(n, d)` in float32, in the order given.

        The result also has the token count of each text.

        Args:
            texts: any number of strings.
            prompt_name: one of `prompts`, or `NO_PROMPT`; None takes the default.
            long_text: what becomes of a text that is too long: it is truncated, raises, or is encoded as the mean of
                its chunks; None takes the setting of the spec.
            truncation_side: the end that is cut off.
            normalize: whether vectors are L2-normalized.
            on_batch: called with the number of texts done so far.

        Raises:
            EncoderError: for an unknown prompt, or a text that cannot be encoded.
        """


def find_side_prompt(prompts: Mapping[str, str], side: SearchSide, default: str | None) -> str | None:
    """Return the name of an encoder's prompt for queries or documents, None for the default prompt, or `NO_PROMPT`.

    sentence-transformers gives every model the prompts `query` and `document`, which are empty unless the model sets
    them. An empty prompt is returned only if there is a default prompt, which would be put before the texts otherwise.
    If there is no prompt for `side`, the result is `NO_PROMPT` where the default prompt is meant for the other side,
    else None.

    Args:
        prompts: prompts of the encoder, by name.
        side: what the texts are in a search.
        default: name of the default prompt; None if there is none.
    """
    names = [name for name in SIDE_PROMPTS[side] if name in prompts]
    with_text = next((name for name in names if prompts[name]), None)
    if with_text is not None or default is None:
        return with_text
    if names:
        return names[0]

    is_of_other_side = any(
        default in side_names for prompt_side, side_names in SIDE_PROMPTS.items() if prompt_side != side
    )
    return NO_PROMPT if is_of_other_side else None


def with_document_prompt(encoder: AnyEncoder, prompt_name: str | None = None) -> AnyEncoder:
    """Return a copy of the encoder whose default prompt is its prompt for documents, or the prompt `prompt_name`.

    An encoder whose default prompt fits documents already is returned unchanged.

    Args:
        encoder: encoder of documents, such as the rows of a source of texts.
        prompt_name: name of another prompt to use instead.

    Raises:
        EncoderError: if there is no prompt of that name.
    """
    name = prompt_name or find_side_prompt(encoder.prompts, "document", encoder.default_prompt_name)
    return encoder if name is None else encoder.with_default_prompt(name)


def encode_queries(encoder: TextEncoder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Encode queries to vectors `(n, d)`, with the encoder's prompt for queries or else its default prompt."""
    return encoder.encode(texts, find_side_prompt(encoder.prompts, "query", encoder.default_prompt_name)).vectors


def hash_texts(context: str, texts: Iterable[str]) -> list[bytes]:
    """Compute a 16-byte hash of each text together with a context, such as the encoder and the prompt."""
    # The context is hashed once; each text continues from a copy of that state.
    start = hashlib.blake2b(context.encode("utf-8", "surrogatepass"), digest_size=16)
    hashes = []
    for text in texts:
        text_hash = start.copy()
        text_hash.update(text.encode("utf-8", "surrogatepass"))
        hashes.append(text_hash.digest())
    return hashes


@lru_cache(maxsize=1024)  # asked for each request
def compute_space_id(
    encoder_fingerprint: str | None, chain: str | None, chain_digest: str | None, dimensions: int
) -> str:
    """Compute the id of an embedding space, 24 hexadecimal digits. Vectors may be compared if their ids are equal.

    Vectors of different dtypes or prompts share an id, because such vectors are meant to be compared.

    Args:
        encoder_fingerprint: covers weights, pooling, layer, maximum length and prompts; None for vectors without an
            encoder.
        chain: `name@version` of the chain of transforms; None for raw vectors.
        chain_digest: SHA-256 of the chain's tensors; None for raw vectors.
        dimensions: dimensions of the vectors served.
    """
    return digest(encoder_fingerprint, chain, chain_digest, dimensions)[:24]


def check_finite(vectors: NDArray[np.float32], spec: EncoderSpec, positions: Sequence[int] | None = None) -> None:
    """Raise `NotFiniteError` for the first text whose vector, a row of `(n, d)`, holds NaN or inf.

    Args:
        vectors: output of the encoder.
        spec: spec of the encoder, with the dtype in use, for the message.
        positions: positions of the texts in the user's input, for the message; None counts them from 0.
    """
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        row = int((~finite).argmax())
        advice = "; float16 overflows above 65,504: set the encoder's dtype to bfloat16 or float32"
        raise NotFiniteError(
            f"{spec.name} gives NaN or inf for this text in {spec.dtype}{advice if spec.dtype == 'float16' else ''}",
            row if positions is None else positions[row],
        )
