"""Several layers and poolings of one model, from one pass through it.

The vectors of layer k are those of the model cut off after layer k, which is what `EncoderSpec.layer` means. Where a
model does something after its last layer that makes these differ, the cut model is run itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from training.encoder.encoder import Encoder
from training.encoder.precision import PROBES
from training.encoder.spec import EncoderSpec, Pooling
from training.errors import EncoderError

VARIANT_POOLINGS: tuple[Pooling, ...] = ("mean", "cls")
ALL = "layers"
SAME = 1e-4
"""Between numbers of unit vectors of the shared pass and of the cut model; other sums in another order give 1e-6."""


def variant_spec(spec: EncoderSpec, layer: int, pooling: Pooling) -> EncoderSpec:
    """A layer of a model under a pooling, with its name: `NAME:layer3-cls`."""
    return replace(spec, name=f"{spec.name}:layer{layer}-{pooling}", layer=layer, pooling=pooling)


def parse_variants(spec: EncoderSpec, written: str, layers: int) -> list[EncoderSpec]:
    """The variants of a model that a user names: `layers` for all, or `layer3-cls`.

    Args:
        spec: of the whole model.
        written: what stands after the colon.
        layers: that the model has.

    Raises:
        EncoderError: if it is neither.
    """
    if written == ALL:
        return [variant_spec(spec, layer, way) for layer in range(1, layers + 1) for way in VARIANT_POOLINGS]
    number, _, pooling = written.removeprefix("layer").partition("-")
    if written.startswith("layer") and number.isdecimal() and pooling in get_args(Pooling):
        found: Any = pooling
        return [variant_spec(spec, int(number), found)]
    raise EncoderError(
        f"{spec.name}:{written} is no variant: write {spec.name}:{ALL}, or {spec.name}:layer3-cls "
        f"(layers 1 to {layers}; {', '.join(get_args(Pooling))})"
    )


class LayeredEncoder:
    """Variants of one model, encoded together.

    Attributes:
        variants: as encoders; their own transformers are used only where the shared pass differs.
        alone: those for which it does.
    """

    def __init__(self, whole: Encoder, specs: Sequence[EncoderSpec], device: str | None = None) -> None:
        """Load each variant of a whole model once, to learn what it gives.

        Raises:
            EncoderError: if one cannot be loaded.
        """
        self.whole = whole
        self.whole.transformer.auto_model.config.output_hidden_states = True
        self.variants: list[Encoder] = []
        self.modules: list[list[Any]] = []
        self.alone: list[int] = []
        for index, spec in enumerate(specs):
            variant = Encoder(spec, device)
            self.variants.append(variant)
            self.modules.append(list(variant.model)[1:])
            shared = self.shared_pass(PROBES, self.whole.prompt(None))
            if np.abs(variant.encode(PROBES).vectors - shared[index]).max() > SAME:
                self.alone.append(index)
            else:
                variant.transformer = None  # the whole model does its work
                del variant.model[0]

    def encode(
        self,
        texts: Sequence[str],
        prompt_name: str | None = None,
        on_batch: Callable[[int], None] | None = None,
        normalize: bool = True,
        plain: bool = False,
    ) -> list[NDArray[np.float32]]:
        """Vectors `(n, d)` of the texts for each variant; the arguments are those of `Encoder.encode`."""
        prompt = None if plain else self.whole.prompt(prompt_name)
        found = self.shared_pass(texts, prompt, on_batch, normalize)
        for index in self.alone:
            found[index] = self.variants[index].encode(texts, prompt_name, normalize=normalize, plain=plain).vectors
        return found

    def shared_pass(
        self,
        texts: Sequence[str],
        prompt: str | None,
        on_batch: Callable[[int], None] | None = None,
        normalize: bool = True,
    ) -> list[NDArray[np.float32]]:
        """One pass through the whole model, pooled layer by layer."""
        found = [np.empty((len(texts), variant.dimensions), np.float32) for variant in self.variants]
        done = 0
        for rows, batch in self.whole.batches(texts, prompt):
            with torch.inference_mode():
                features = self.whole.through_transformer(batch)
                for index, variant in enumerate(self.variants):
                    own = features | {"token_embeddings": features["all_layer_embeddings"][variant.spec.layer].float()}
                    pooled = self.whole.finish(own, self.modules[index], len(rows), normalize)
                    found[index][rows] = pooled.cpu().numpy()
            done += len(rows)
            if on_batch:
                on_batch(done)
        return found
