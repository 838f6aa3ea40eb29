"""Encoders that experiments evaluate beside whole models: layers under other poolings, and a bag of words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from transformers import AutoConfig

from lathe.training.encoder.loading import locate_model
from lathe.training.encoder.spec import EncoderSpec, LongText, Pooling, Side, VectorStores
from lathe.training.encoder.text_encoder import Encoding
from lathe.training.errors import EncoderError
from lathe.training.evaluation.encoders import EvaluatedEncoder, Member, RequestedEncoder

BAG_OF_WORDS = "bag-of-words"
"""Name of the bag-of-words encoder."""
BAG_DIMENSIONS = 4096
"""Number of dimensions that words are hashed to."""
ALL_LAYERS = "layers"
"""Name that stands for all layers of a model, each under all of `VARIANT_POOLINGS`."""
VARIANT_POOLINGS: tuple[Pooling, ...] = ("mean", "cls")
"""Poolings of each layer that the name `layers` stands for."""


def list_variants(spec: EncoderSpec, written: str) -> list[RequestedEncoder]:
    """Return the layers of a model that a user names: `layers` for all, or such as `layer3-cls`.

    Each is an encoder of its own, named `NAME:layer3-cls`; those under one pooling are a family.

    Raises:
        EncoderError: if the name has another form, or the model is static.
    """
    if written == ALL_LAYERS:
        layers = range(1, (spec.layer or count_layers(spec)) + 1)
        return [_request_variant(spec, layer, pooling) for layer in layers for pooling in VARIANT_POOLINGS]
    number, _, pooling = written.removeprefix("layer").partition("-")
    if written.startswith("layer") and number.isdecimal() and pooling in get_args(Pooling):
        found: Any = pooling
        return [_request_variant(spec, int(number), found)]
    raise EncoderError(
        f"{spec.name}:{written} is no variant: write {spec.name}:{ALL_LAYERS}, or {spec.name}:layer3-cls "
        f"({', '.join(get_args(Pooling))})"
    )


def count_layers(spec: EncoderSpec) -> int:
    """Return the number of layers of a model.

    Raises:
        EncoderError: for a static one.
    """
    try:
        layers: int = AutoConfig.from_pretrained(locate_model(spec.model)).num_hidden_layers
    except (OSError, ValueError, AttributeError) as error:
        raise EncoderError(f"{spec.name} has no layers: {error}") from error
    return layers


def _request_variant(spec: EncoderSpec, layer: int, pooling: Pooling) -> RequestedEncoder:
    variant = replace(spec, name=f"{spec.name}:layer{layer}-{pooling}", layer=layer, pooling=pooling)
    return RequestedEncoder(variant, family=f"{spec.name}, {pooling} pooling")


@dataclass(frozen=True)
class RequestedBagOfWords(RequestedEncoder):
    """Request for the bag of words, which has no model."""

    spec: EncoderSpec = EncoderSpec(name=BAG_OF_WORDS, model=BAG_OF_WORDS)

    def open(self, device: str | None, stores: VectorStores | None = None) -> EvaluatedEncoder:
        """Return the bag of words."""
        return open_bag_of_words()


class BagOfWords:
    """Baseline that a model must beat: word counts, hashed to 4,096 signed dimensions."""

    prompts: Mapping[str, str] = {}

    def __init__(self) -> None:
        from sklearn.feature_extraction.text import HashingVectorizer

        self.count = HashingVectorizer(n_features=BAG_DIMENSIONS, norm="l2", dtype=np.float32)
        self.count_only = HashingVectorizer(n_features=BAG_DIMENSIONS, norm=None, dtype=np.float32)

    def encode(
        self,
        texts: Sequence[str],
        prompt_name: str | None = None,
        long_text: LongText | None = None,
        truncation_side: Side = "right",
        normalize: bool = True,
        on_batch: Callable[[int], None] | None = None,
    ) -> Encoding:
        """Count hashed words: unit vectors, or counts unless `normalize`, `(n, 4096)`.

        Zero for a text without a word. There are no prompts, and no text is too long.
        """
        counter = self.count if normalize else self.count_only
        vectors = counter.transform(texts).toarray() if texts else np.empty((0, BAG_DIMENSIONS))
        if on_batch is not None:
            on_batch(len(texts))
        return Encoding(np.asarray(vectors, np.float32), np.zeros(len(texts), np.int64))


def open_bag_of_words() -> EvaluatedEncoder:
    """Return the bag of words as an encoder to evaluate."""
    fingerprint = f"{BAG_OF_WORDS}-{BAG_DIMENSIONS}"
    member = Member(BAG_OF_WORDS, fingerprint, fingerprint, BAG_DIMENSIONS, {}, None, BAG_OF_WORDS)
    return EvaluatedEncoder(BagOfWords(), member)  # type: ignore[arg-type]  # an encoder by its `encode`
