"""Encoders to evaluate, what results say of them, and their vectors by text in files that scoring processes map.

The files are of one run. That no text is encoded twice is up to the encoder, which stores its vectors.

folder/
├── keys.bin       16-byte BLAKE2b digest of each text with its prompt
└── vectors.f32    its vector, as the encoder returned it
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
        name: name that users give it.
        fingerprint: hash that identifies its vector space.
        output: hash that identifies its vectors exactly, which also depend on dtype and default prompt.
        dimensions: number of dimensions.
        prompts: texts that precede the input, by prompt name.
        default_prompt: text that precedes the input if a task names no prompt; None for none.
        family: name shared by related encoders, which leave-one-out statistics leave out together.
        published_mean_norm: ‖μ‖ according to the suite; None if it states none.
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
        """Return the text that is put before an input under a prompt name.

        For None, it is the default prompt, or None if there is none.

        Raises:
            KeyError: if there is no prompt of that name.
        """
        return self.default_prompt if name is None else self.prompts[name]


@dataclass(frozen=True)
class RequestedEncoder:
    """Encoder that a user requests.

    Attributes:
        spec: the model.
        family: name shared by related encoders; None for the organization of a hub id, or else the name.
        published_mean_norm: ‖μ‖ according to a suite.
    """

    spec: EncoderSpec
    family: str | None = None
    published_mean_norm: float | None = None

    def open(self, device: str | None, stores: VectorStores | None = None) -> "EvaluatedEncoder":
        """Load the model, or connect to its API, and return it with the description that goes into the results.

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
        """Encode texts with the prompt of this name before each, or the default prompt for None.

        Returns finite unit vectors `(n, d)`.

        Raises:
            EncoderError: with the name of the encoder, if it raises any exception or returns NaN or inf for a text.
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
    """Return the description of a loaded encoder for the results.

    It has name, dimensions, prompts, family, and hashes of the model and of its output. `output` is the fingerprint, or
    a hash of it with dtype and prompt if the dtype is not float32 or there is a default prompt.
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
    """Return the keys of the encoder's prompts by name, with those for searches as `query` and `document` for mteb."""
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
"""Names of the two files."""


def text_key(text: str, prompt: str | None = None) -> bytes:
    """Return the key of a text's vector, a 16-byte hash of the text and the prompt before it.

    No prompt and an empty prompt give the same key.
    """
    return hashlib.blake2b(f"{prompt or ''}\0{text}".encode(errors="surrogatepass"), digest_size=KEY_BYTES).digest()


class TextVectors:
    """Vectors of texts, looked up by the hash of the text and its prompt.

    Args:
        keys: key of each vector, see `text_key`.
        vectors: `(n, d)`, in memory or mapped from a file.

    Attributes:
        rows: row of each vector, by key.
    """

    def __init__(self, keys: Iterable[bytes], vectors: NDArray[np.float32]) -> None:
        self.rows = {key: row for row, key in enumerate(keys)}
        self.vectors = vectors

    @classmethod
    def open(cls, folder: Path, dimensions: int) -> Self:
        """Memory-map the vectors that `write_vectors` wrote to a folder, and return them."""
        keys = np.fromfile(folder / KEYS, f"V{KEY_BYTES}").tolist()
        if not keys:  # an empty file cannot be mapped
            return cls(keys, np.empty((0, dimensions), np.float32))
        return cls(keys, np.memmap(folder / VECTORS, np.float32, "r", shape=(len(keys), dimensions)))

    def __contains__(self, key: bytes) -> bool:
        """Return whether there is a vector for the key."""
        return key in self.rows

    def get(self, keys: Sequence[bytes]) -> NDArray[np.float32]:
        """Return the vectors `(n, d)` of the keys, in their order, as a copy in memory.

        Raises:
            KeyError: if a key has no vector.
        """
        return np.asarray(self.vectors[[self.rows[key] for key in keys]])


def write_vectors(folder: Path, blocks: Iterable[tuple[Sequence[bytes], NDArray[np.float32]]]) -> None:
    """Write pairs of keys and vectors `(n, d)` to the two files of a folder.

    They are written block by block, so that one block is in memory at a time. Keys must be distinct. Older files are
    replaced.
    """
    make_root(folder)
    with ExitStack() as files:
        for name in (KEYS, VECTORS):
            (folder / name).unlink(missing_ok=True)
        keys_file, vectors_file = (files.enter_context(create_file(folder / name)) for name in (KEYS, VECTORS))
        for keys, vectors in blocks:
            vectors_file.write(np.ascontiguousarray(vectors, np.float32).tobytes())
            keys_file.write(b"".join(keys))
