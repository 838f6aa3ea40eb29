"""Encoders to evaluate, their descriptions in results, and their vectors in files that scoring processes memory-map.

The files belong to one run. Later runs do not encode texts again if the encoder stores its vectors.

folder/
├── keys.bin       16-byte BLAKE2b digest of each text with its prompt
└── vectors.f32    vector of each text, as the encoder returned it
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from lathe.training.encoder.opening import open_encoder
from lathe.training.encoder.spec import EncoderSpec, SearchSide, VectorStores
from lathe.training.encoder.text_encoder import TextEncoder, find_side_prompt
from lathe.training.errors import EncoderError, NotFiniteError
from lathe.transforms.files import create_file, make_root

HUB_ID = re.compile(r"([\w-][\w.-]*)/[\w.-]+$")
"""Pattern of a model id on the Hugging Face hub; group 1 is the organization."""

OnBatch = Callable[[int], None]
"""Function that is called with the number of texts encoded so far."""


@dataclass(frozen=True)
class Member:
    """Description of an encoder in the results of an evaluation.

    Attributes:
        name: name that users give the encoder.
        fingerprint: hash that identifies the embedding space.
        output: hash that identifies the vectors exactly: the embedding space, the dtype and the default prompt.
        dimensions: number of dimensions.
        prompts: texts that precede the input, by prompt name.
        default_prompt: text that precedes the input if a task names no prompt; None for no text.
        family: name shared by related encoders, which leave-one-out statistics leave out together.
        published_mean_norm: ‖μ‖ of the encoder's vectors according to the suite; None if the suite has no value.
    """

    name: str
    fingerprint: str
    output: str
    dimensions: int
    prompts: Mapping[str, str]
    default_prompt: str | None
    family: str
    published_mean_norm: float | None = None

    def prompt(self, name: str | None) -> str | None:
        """Return the text of the prompt with this name. For the name None, return the default prompt or None.

        Raises:
            KeyError: if there is no prompt with this name.
        """
        return self.default_prompt if name is None else self.prompts[name]


@dataclass(frozen=True)
class RequestedEncoder:
    """Encoder that a user requests.

    Attributes:
        spec: spec of the encoder.
        family: name shared by related encoders; None for the organization in the model's hub id, or else the
            encoder's name.
        published_mean_norm: ‖μ‖ of the encoder's vectors according to the suite; None if the suite has no value.
    """

    spec: EncoderSpec
    family: str | None = None
    published_mean_norm: float | None = None

    def open(self, device: str | None, stores: VectorStores | None = None) -> "EvaluatedEncoder":
        """Load the encoder's model, or connect to its API, and describe the encoder for the results.

        Args:
            device: torch device; None for the default.
            stores: where vectors are stored; None stores none.

        Raises:
            EncoderError: if the model cannot be loaded.
        """
        encoder = open_encoder(self.spec, device, stores)
        organisation = HUB_ID.match(self.spec.model)
        family = self.family or (organisation.group(1) if organisation else self.spec.name)
        return EvaluatedEncoder(encoder, _describe_member(encoder, family, self.published_mean_norm))


class EvaluatedEncoder:
    """Loaded encoder with its description in results."""

    def __init__(self, encoder: TextEncoder, member: Member) -> None:
        self.encoder = encoder
        self.member = member

    def encode(self, texts: Sequence[str], prompt_name: str | None, on_batch: OnBatch) -> NDArray[np.float32]:
        """Encode texts with a named prompt as vectors `(n, d)`. Any failure becomes an `EncoderError` with the name.

        The prompt name None means the default prompt. NaN or inf in a vector is a failure.

        Args:
            texts: the texts.
            prompt_name: name of the prompt, or None.
            on_batch: called with the number of texts encoded so far.
        """
        name = self.member.name
        try:
            return self.encoder.encode(texts, prompt_name, on_batch=on_batch).vectors
        except NotFiniteError as error:
            raise EncoderError(f"{error.reason}, number {(error.position or 0) + 1:,} of {len(texts):,}") from error
        except EncoderError as error:
            raise EncoderError(f"{name}: {error}") from error
        except Exception as error:  # models raise anything
            raise EncoderError(
                f"{name} fails on some of {len(texts):,} texts: {type(error).__name__}: {error}"
            ) from error


def _describe_member(encoder: TextEncoder, family: str, published_mean_norm: float | None) -> Member:
    """Describe a loaded encoder for the results: name, dimensions, prompts, family, and hashes of model and output.

    The hash `output` equals the fingerprint for dtype float32 without a default prompt. Otherwise it is a hash of
    fingerprint, dtype and default prompt.
    """
    prompt, output = encoder.prompt_key(None), encoder.fingerprint
    # The fingerprint covers neither dtype nor default prompt, and both change the vectors.
    if encoder.spec.dtype != "float32" or prompt:
        output = hashlib.sha256(repr((output, encoder.spec.dtype, prompt)).encode()).hexdigest()[:32]

    return Member(
        name=encoder.name,
        fingerprint=encoder.fingerprint,
        output=output,
        dimensions=encoder.dimensions,
        prompts=_name_side_prompts(encoder),
        default_prompt=prompt or None,
        family=family,
        published_mean_norm=published_mean_norm,
    )


def _name_side_prompts(encoder: TextEncoder) -> dict[str, str]:
    """Return the texts of the encoder's prompts by name, with the names `query` and `document` that mteb asks for.

    A name is missing if the encoder has no such prompt. If queries and documents have modules of their own, the text
    also says which modules encode it, see `prompt_key`.
    """
    sides: tuple[SearchSide, ...] = ("query", "document")
    prompts = encoder.prompts
    named: dict[str, str | None] = {
        side: find_side_prompt(prompts, side, encoder.default_prompt_name) for side in sides
    }
    named |= {name: name for name in prompts}
    return {alias: encoder.prompt_key(name) or "" for alias, name in named.items() if name is not None}


KEY_BYTES = 16
"""Number of bytes of a text's key."""
KEYS, VECTORS = "keys.bin", "vectors.f32"
"""File names of keys and vectors."""


def text_key(text: str, prompt: str | None = None) -> bytes:
    """Hash a text and the prompt before it to the 16-byte key of the text's vector.

    The prompts None and "" give the same key.
    """
    return hashlib.blake2b(f"{prompt or ''}\0{text}".encode(errors="surrogatepass"), digest_size=KEY_BYTES).digest()


class TextVectors:
    """Vectors of texts, looked up by the hash of the text and its prompt.

    Args:
        keys: key of each vector, see `text_key`.
        vectors: `(n, d)`, in memory or memory-mapped.

    Attributes:
        rows: row of `vectors` by key.
    """

    def __init__(self, keys: Iterable[bytes], vectors: NDArray[np.float32]) -> None:
        self.rows = {key: row for row, key in enumerate(keys)}
        self.vectors = vectors

    @classmethod
    def open(cls, folder: Path, dimensions: int) -> Self:
        """Memory-map the vectors `(n, d)` that `write_vectors` wrote to a folder."""
        keys = np.fromfile(folder / KEYS, f"V{KEY_BYTES}").tolist()
        if not keys:  # an empty file cannot be mapped
            return cls(keys, np.empty((0, dimensions), np.float32))
        return cls(keys, np.memmap(folder / VECTORS, np.float32, "r", shape=(len(keys), dimensions)))

    def __contains__(self, key: bytes) -> bool:
        """Return whether there is a vector for the key."""
        return key in self.rows

    def get(self, keys: Sequence[bytes]) -> NDArray[np.float32]:
        """Copy the vectors of the keys to memory, `(n, d)`, in the order of the keys.

        Raises:
            KeyError: if a key has no vector.
        """
        return np.asarray(self.vectors[[self.rows[key] for key in keys]])


def write_vectors(folder: Path, blocks: Iterable[tuple[Sequence[bytes], NDArray[np.float32]]]) -> None:
    """Write blocks of keys and vectors `(n, d)` to the files `KEYS` and `VECTORS` of a folder, replacing old files.

    Only one block is in memory at a time. Keys must be distinct.
    """
    make_root(folder)
    with ExitStack() as files:
        for name in (KEYS, VECTORS):
            (folder / name).unlink(missing_ok=True)
        keys_file, vectors_file = (files.enter_context(create_file(folder / name)) for name in (KEYS, VECTORS))
        for keys, vectors in blocks:
            vectors_file.write(np.ascontiguousarray(vectors, np.float32).tobytes())
            keys_file.write(b"".join(keys))
