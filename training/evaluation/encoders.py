"""What is compared: encoders, layers of one encoder from a single pass, and a bag of words."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from training.encoder.encoder import Encoder
from training.encoder.layers import LayeredEncoder, parse_variants
from training.encoder.spec import EncoderSpec
from training.errors import EncoderError

BAG_OF_WORDS = "bag-of-words"
BAG_DIMENSIONS = 4096
HUB_ID = re.compile(r"([\w-][\w.-]*)/[\w.-]+$")

OnBatch = Callable[[int], None]


@dataclass(frozen=True)
class Member:
    """An encoder as results name it.

    Attributes:
        name: what users call it.
        fingerprint: of its space.
        output: of the vectors themselves, which dtype and default prompt change too.
        dimensions: its width.
        prompts: texts put before the input, by name.
        default_prompt: put before it where a task names none.
        family: encoders of one family are left out together where that is asked of a statistic.
        published_mean_norm: what a suite says of it.
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
        """The text put before a text where a task names that prompt."""
        return self.default_prompt if name is None else self.prompts[name]


class Group(Protocol):
    """Encoders that are run together."""

    @property
    def members(self) -> Sequence[Member]:
        """In the order of what `encode` gives."""

    def encode(self, texts: Sequence[str], prompt_name: str | None, on_batch: OnBatch) -> list[NDArray[np.float32]]:
        """Unit vectors `(n, d)` of the texts for each member."""

    def unnormalized(self, texts: Sequence[str], plain: bool = False) -> list[NDArray[np.float32]]:
        """What each member itself gives `(n, d)`, before it is brought to unit length; `plain` leaves prompts out."""


@dataclass(frozen=True)
class Wanted:
    """An encoder a user asked for.

    Attributes:
        spec: the model; None for the bag of words.
        variant: `layers`, `layer3-cls`, or empty for the model as it is.
        family: None takes the organisation of a hub id, or the name.
        published_mean_norm: what a suite says of it.
    """

    spec: EncoderSpec | None
    variant: str = ""
    family: str | None = None
    published_mean_norm: float | None = None


def plan_groups(wanted: Sequence[Wanted], device: str | None) -> list[Callable[[], Group]]:
    """What opens each group of the encoders asked for; variants of one model are one group."""
    found: list[Callable[[], Group]] = []
    layered: list[tuple[EncoderSpec, list[str]]] = []
    for one in wanted:
        if one.spec is None:
            found.append(BagOfWords)
        elif not one.variant:
            found.append(partial(Single, one, device))
        elif known := next((written for spec, written in layered if spec == one.spec), None):
            known.append(one.variant)
        else:
            layered.append((one.spec, [one.variant]))
            found.append(partial(Layers, one.spec, layered[-1][1], device))
    return found


class Single:
    """A model as it is; those of one organisation on the hub are a family."""

    def __init__(self, wanted: Wanted, device: str | None) -> None:
        assert wanted.spec is not None
        self.encoder = Encoder(wanted.spec, device)
        organisation = HUB_ID.match(wanted.spec.model)
        family = wanted.family or (organisation.group(1) if organisation else wanted.spec.name)
        self.members = [member(self.encoder, family, wanted.published_mean_norm)]

    def encode(self, texts: Sequence[str], prompt_name: str | None, on_batch: OnBatch) -> list[NDArray[np.float32]]:
        """The model's vectors."""
        return [self.encoder.encode(texts, prompt_name, on_batch=on_batch).vectors]

    def unnormalized(self, texts: Sequence[str], plain: bool = False) -> list[NDArray[np.float32]]:
        """What its last module gives."""
        return [self.encoder.encode(texts, normalize=False, plain=plain).vectors]


class Layers:
    """Variants of one model; those of a pooling are a family."""

    def __init__(self, spec: EncoderSpec, written: Sequence[str], device: str | None) -> None:
        whole = Encoder(replace(spec, layer=None, pooling=None), device)
        if whole.static:
            raise EncoderError(f"{spec.name} is a static model: it has no layers")
        layers = spec.layer or whole.transformer.auto_model.config.num_hidden_layers
        specs = {one.name: one for item in written for one in parse_variants(spec, item, layers)}
        self.layered = LayeredEncoder(whole, list(specs.values()), device)
        self.members = [
            member(variant, f"{spec.name}, {variant.spec.pooling} pooling", None) for variant in self.layered.variants
        ]

    def encode(self, texts: Sequence[str], prompt_name: str | None, on_batch: OnBatch) -> list[NDArray[np.float32]]:
        """Every variant's vectors."""
        return self.layered.encode(texts, prompt_name, on_batch)

    def unnormalized(self, texts: Sequence[str], plain: bool = False) -> list[NDArray[np.float32]]:
        """What every variant's last module gives."""
        return self.layered.encode(texts, normalize=False, plain=plain)


class BagOfWords:
    """Counts of words, each hashed to one of 4,096 places with a sign, to unit length: what a model must beat."""

    def __init__(self) -> None:
        from sklearn.feature_extraction.text import HashingVectorizer

        self.count = HashingVectorizer(n_features=BAG_DIMENSIONS, norm="l2", dtype=np.float32)
        self.count_only = HashingVectorizer(n_features=BAG_DIMENSIONS, norm=None, dtype=np.float32)
        fingerprint = f"{BAG_OF_WORDS}-{BAG_DIMENSIONS}"
        self.members = [Member(BAG_OF_WORDS, fingerprint, fingerprint, BAG_DIMENSIONS, {}, None, BAG_OF_WORDS)]

    def encode(self, texts: Sequence[str], prompt_name: str | None, on_batch: OnBatch) -> list[NDArray[np.float32]]:
        """The counts; a text without a word is zero."""
        vectors = self.count.transform(texts).toarray() if texts else np.empty((0, BAG_DIMENSIONS), np.float32)
        on_batch(len(texts))
        return [np.asarray(vectors, np.float32)]

    def unnormalized(self, texts: Sequence[str], plain: bool = False) -> list[NDArray[np.float32]]:
        """The counts as they are; there are no prompts to leave out."""
        return [np.asarray(self.count_only.transform(texts).toarray(), np.float32)]


def encode_checked(
    group: Group, texts: Sequence[str], prompt_name: str | None, on_batch: OnBatch
) -> list[NDArray[np.float32]]:
    """What the encoders of a group give; see `Group.encode`.

    Raises:
        EncoderError: naming an encoder that fails, or that gives NaN or inf for some text.
    """
    name = group.members[0].name
    try:
        found = group.encode(texts, prompt_name, on_batch)
    except EncoderError as error:
        raise EncoderError(f"{name}: {error}") from error
    except Exception as error:  # models raise anything
        raise EncoderError(f"{name} fails on some of {len(texts):,} texts: {type(error).__name__}: {error}") from error
    for one, vectors in zip(group.members, found, strict=True):
        broken = int((~np.isfinite(vectors).all(axis=1)).sum())
        if broken:
            raise EncoderError(f"{one.name} gives NaN or inf for {broken:,} of {len(texts):,} texts")
    return found


def member(encoder: Encoder, family: str, published_mean_norm: float | None) -> Member:
    """A loaded model as results name it."""
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
