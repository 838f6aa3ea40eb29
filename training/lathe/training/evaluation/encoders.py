"""Compared encoders: models, layers of one model from a single forward pass, and a bag of words."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.layers import LayeredEncoder, parse_variants
from lathe.training.encoder.opening import open_encoder
from lathe.training.encoder.spec import EncoderSpec, StoreSettings
from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.errors import EncoderError, NotFiniteError

BAG_OF_WORDS = "bag-of-words"
"""Name of the bag-of-words encoder."""
BAG_DIMENSIONS = 4096
"""Number of dimensions that words are hashed to."""
HUB_ID = re.compile(r"([\w-][\w.-]*)/[\w.-]+$")
"""Pattern of a model id on the Hugging Face hub; group 1 is the organization."""

OnBatch = Callable[[int], None]
"""Function that is called with the number of texts encoded so far."""


@dataclass(frozen=True)
class Member:
    """Description of an encoder in results.

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
        """Return the text that precedes an input under a prompt name; the default prompt if `name` is None.

        Raises:
            KeyError: if there is no prompt of that name.
        """
        return self.default_prompt if name is None else self.prompts[name]


class Group(Protocol):
    """Encoders that run together, for example layers of one model that share a forward pass."""

    @property
    def members(self) -> Sequence[Member]:
        """Descriptions of the encoders, in the order of the arrays that `encode` returns."""

    def encode(self, texts: Sequence[str], prompt_name: str | None, on_batch: OnBatch) -> list[NDArray[np.float32]]:
        """Encode texts under a named or the default prompt; return unit vectors `(n, d)`, one array for each member."""

    def encode_unnormalized(self, texts: Sequence[str], plain: bool = False) -> list[NDArray[np.float32]]:
        """Encode texts without normalization, `plain` without any prompt; return one array `(n, d)` for each member."""


@dataclass(frozen=True)
class RequestedEncoder:
    """Encoder that a user requests.

    Attributes:
        spec: the model; None for the bag of words.
        variant: layers of the model, such as `layers` or `layer3-cls`; empty for the whole model.
        family: name shared by related encoders; None for the organization of a hub id, or else the name.
        published_mean_norm: ‖μ‖ according to a suite.
    """

    spec: EncoderSpec | None
    variant: str = ""
    family: str | None = None
    published_mean_norm: float | None = None


def plan_groups(
    wanted: Sequence[RequestedEncoder], device: str | None, store: StoreSettings | None = None
) -> list[Callable[[], Group]]:
    """Return a loader function for each group of requested encoders; variants of a model share a group.

    Nothing is loaded before a loader is called. `store` is for the vectors of embeddings APIs.
    """
    found: list[Callable[[], Group]] = []
    layered: list[tuple[EncoderSpec, list[str]]] = []
    for one in wanted:
        if one.spec is None:
            found.append(BagOfWords)
        elif not one.variant:
            found.append(partial(Single, one, device, store))
        elif known := next((written for spec, written in layered if spec == one.spec), None):
            known.append(one.variant)
        else:
            layered.append((one.spec, [one.variant]))
            found.append(partial(Layers, one.spec, layered[-1][1], device))
    return found


class Single:
    """Group of one model, loaded at construction; its default family is the organization on the hub, or its name."""

    def __init__(self, wanted: RequestedEncoder, device: str | None, store: StoreSettings | None = None) -> None:
        assert wanted.spec is not None
        self.encoder = open_encoder(wanted.spec, device, store)
        organisation = HUB_ID.match(wanted.spec.model)
        family = wanted.family or (organisation.group(1) if organisation else wanted.spec.name)
        self.members = [_describe_member(self.encoder, family, wanted.published_mean_norm)]

    def encode(self, texts: Sequence[str], prompt_name: str | None, on_batch: OnBatch) -> list[NDArray[np.float32]]:
        """Encode texts with the model; return a list with its unit vectors `(n, d)`."""
        return [self.encoder.encode(texts, prompt_name, on_batch=on_batch).vectors]

    def encode_unnormalized(self, texts: Sequence[str], plain: bool = False) -> list[NDArray[np.float32]]:
        """Encode texts without normalization; return a list with the output `(n, d)` of the model's last module."""
        return [self.encoder.encode(texts, normalize=False, plain=plain).vectors]


class Layers:
    """Group of layers and poolings of one model, from one forward pass; variants with the same pooling are a family.

    Construction loads the model. It raises `EncoderError` if the model is static or a variant is not understood.

    Args:
        spec: the model; its own pooling is ignored.
        written: variants as the user wrote them: `layers` for all, up to `spec.layer` if set, or such as `layer3-cls`.
        device: torch device; None for the default.
    """

    def __init__(self, spec: EncoderSpec, written: Sequence[str], device: str | None) -> None:
        whole = Encoder(replace(spec, layer=None, pooling=None), device)
        if whole.static:
            raise EncoderError(f"{spec.name} is a static model: it has no layers")
        layers = spec.layer or whole.transformer.auto_model.config.num_hidden_layers
        specs = {one.name: one for item in written for one in parse_variants(spec, item, layers)}
        self.layered = LayeredEncoder(whole, list(specs.values()), device)
        self.members = [
            _describe_member(variant, f"{spec.name}, {variant.spec.pooling} pooling", None)
            for variant in self.layered.variants
        ]

    def encode(self, texts: Sequence[str], prompt_name: str | None, on_batch: OnBatch) -> list[NDArray[np.float32]]:
        """Encode texts in one pass; return the unit vectors `(n, d)` of every variant."""
        return self.layered.encode(texts, prompt_name, on_batch)

    def encode_unnormalized(self, texts: Sequence[str], plain: bool = False) -> list[NDArray[np.float32]]:
        """Encode texts in one pass without normalization; return the vectors `(n, d)` of every variant."""
        return self.layered.encode(texts, normalize=False, plain=plain)


class BagOfWords:
    """Group of one baseline: word counts, hashed to 4,096 signed dimensions and normalized."""

    def __init__(self) -> None:
        from sklearn.feature_extraction.text import HashingVectorizer

        self.count = HashingVectorizer(n_features=BAG_DIMENSIONS, norm="l2", dtype=np.float32)
        self.count_only = HashingVectorizer(n_features=BAG_DIMENSIONS, norm=None, dtype=np.float32)
        fingerprint = f"{BAG_OF_WORDS}-{BAG_DIMENSIONS}"
        self.members = [Member(BAG_OF_WORDS, fingerprint, fingerprint, BAG_DIMENSIONS, {}, None, BAG_OF_WORDS)]

    def encode(self, texts: Sequence[str], prompt_name: str | None, on_batch: OnBatch) -> list[NDArray[np.float32]]:
        """Count hashed words; return a list with the unit vectors `(n, 4096)`, zero for a text without a word."""
        vectors = self.count.transform(texts).toarray() if texts else np.empty((0, BAG_DIMENSIONS), np.float32)
        on_batch(len(texts))
        return [np.asarray(vectors, np.float32)]

    def encode_unnormalized(self, texts: Sequence[str], plain: bool = False) -> list[NDArray[np.float32]]:
        """Count hashed words without normalization; return a list with the counts `(n, 4096)`; there are no prompts."""
        return [np.asarray(self.count_only.transform(texts).toarray(), np.float32)]


def encode_checked(
    group: Group, texts: Sequence[str], prompt_name: str | None, on_batch: OnBatch
) -> list[NDArray[np.float32]]:
    """Encode texts with `Group.encode` and return the vectors `(n, d)` of each member, all of them finite.

    Raises:
        EncoderError: with the name of the encoder, if it raises any exception or returns NaN or inf for a text.
    """
    name = group.members[0].name
    try:
        found = group.encode(texts, prompt_name, on_batch)
    except NotFiniteError as error:
        raise EncoderError(f"{error.reason}, number {(error.position or 0) + 1:,} of {len(texts):,}") from error
    except EncoderError as error:
        raise EncoderError(f"{name}: {error}") from error
    except Exception as error:  # models raise anything
        raise EncoderError(f"{name} fails on some of {len(texts):,} texts: {type(error).__name__}: {error}") from error
    for one, vectors in zip(group.members, found, strict=True):
        broken = int((~np.isfinite(vectors).all(axis=1)).sum())
        if broken:
            raise EncoderError(f"{one.name} gives NaN or inf for {broken:,} of {len(texts):,} texts")
    return found


def _describe_member(encoder: TextEncoder, family: str, published_mean_norm: float | None) -> Member:
    """Describe a loaded model for results.

    `output` is the fingerprint, or a hash of it with dtype and prompt if the dtype is not float32 or there is a default
    prompt.
    """
    prompt, output = encoder.prompt(None), encoder.fingerprint
    if encoder.spec.dtype != "float32" or prompt:
        output = hashlib.sha256(repr((output, encoder.spec.dtype, prompt)).encode()).hexdigest()[:32]
    return Member(
        name=encoder.name,
        fingerprint=encoder.fingerprint,
        output=output,
        dimensions=encoder.dimensions,
        prompts=encoder.prompts,
        default_prompt=prompt or None,
        family=family,
        published_mean_norm=published_mean_norm,
    )
