"""Vectors of several layers and poolings of one model, from a single forward pass.

The vectors of layer k are those of the model truncated after layer k, which is what `EncoderSpec.layer` means. A norm
after the last layer, which language models have, is applied to every layer. If a model does something else after its
last layer that makes the two differ, the truncated model itself is run.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from lathe.training.encoder.batching import Batch
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.precision import PROBES
from lathe.training.encoder.spec import EncoderSpec, Pooling
from lathe.training.errors import EncoderError

VARIANT_POOLINGS: tuple[Pooling, ...] = ("mean", "cls")
"""Poolings of each layer that the name `layers` stands for."""

FINAL_NORMS = ("norm", "final_norm", "ln_f")
"""Names of the norm after a model's last layer. A model returns the states of the last layer with it, those of inner
layers without it."""

ALL = "layers"
"""Name that stands for all layers of a model, each under all of `VARIANT_POOLINGS`."""

MAX_DIFFERENCE = 1e-4
"""Maximum difference between entries of unit vectors from the shared pass and from the truncated model. Sums in another
order differ by 1e-6."""


def _build_variant_spec(spec: EncoderSpec, layer: int, pooling: Pooling) -> EncoderSpec:
    """Return the spec of one layer of a model under a pooling, named `NAME:layer3-cls`."""
    return replace(spec, name=f"{spec.name}:layer{layer}-{pooling}", layer=layer, pooling=pooling)


def parse_variants(spec: EncoderSpec, written: str, layers: int) -> list[EncoderSpec]:
    """Parse the variants of a model that a user names, `layers` for all or such as `layer3-cls`; return their specs.

    Args:
        spec: spec of the whole model.
        written: the name, without the encoder's name and colon.
        layers: number of the model's layers.

    Raises:
        EncoderError: if the name has another form.
    """
    if written == ALL:
        return [_build_variant_spec(spec, layer, way) for layer in range(1, layers + 1) for way in VARIANT_POOLINGS]
    number, _, pooling = written.removeprefix("layer").partition("-")
    if written.startswith("layer") and number.isdecimal() and pooling in get_args(Pooling):
        found: Any = pooling
        return [_build_variant_spec(spec, int(number), found)]
    raise EncoderError(
        f"{spec.name}:{written} is no variant: write {spec.name}:{ALL}, or {spec.name}:layer3-cls "
        f"(layers 1 to {layers}; {', '.join(get_args(Pooling))})"
    )


class LayeredEncoder:
    """Variants (layer and pooling) of one model, encoded together in one forward pass where possible.

    Attributes:
        whole: encoder of the whole model.
        variants: encoders of the variants; those that share the pass have no transformer of their own.
        modules: modules after the transformer, by variant.
        alone: indices of variants whose vectors differ in the shared pass, and that run their own transformer.
        final_norm: norm after the last layer of the whole model; None without one.
    """

    def __init__(self, whole: Encoder, specs: Sequence[EncoderSpec], device: str | None = None) -> None:
        """Load each variant once, and test on `PROBES` whether the shared pass gives the same vectors.

        Transformers of variants that pass are removed from memory. The whole model is set to return all hidden states.

        Args:
            whole: encoder of the whole model.
            specs: the variants.
            device: torch device of the variants.

        Raises:
            EncoderError: if a variant cannot be loaded.
        """
        self.whole = whole
        model = self.whole.transformer.auto_model
        model.config.output_hidden_states = True
        self.final_norm: Any = next((getattr(model, name) for name in FINAL_NORMS if hasattr(model, name)), None)
        self.variants: list[Encoder] = []
        self.modules: list[list[Any]] = []
        self.alone: list[int] = []
        for index, spec in enumerate(specs):
            variant = Encoder(spec, device)
            self.variants.append(variant)
            self.modules.append(list(variant.model)[1:])
            shared = self._encode_in_one_pass(PROBES, self.whole.prompt(None))
            if np.abs(variant.encode(PROBES).vectors - shared[index]).max() > MAX_DIFFERENCE:
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
        """Encode texts under every variant; return a list of vectors `(n, d)` float32, in the order of `variants`.

        Variants in `alone` encode the texts themselves, after the shared pass.

        Args:
            texts: any number of strings; long ones are truncated.
            prompt_name: name of a prompt; None takes the model's default.
            on_batch: called after each batch of the shared pass with the number of texts done so far.
            normalize: whether vectors are L2-normalized.
            plain: whether texts get no prompt at all, not even the model's default.
        """
        prompt = None if plain else self.whole.prompt(prompt_name)
        found = self._encode_in_one_pass(texts, prompt, on_batch, normalize)
        for index in self.alone:
            found[index] = self.variants[index].encode(texts, prompt_name, normalize=normalize, plain=plain).vectors
        return found

    def _encode_in_one_pass(
        self,
        texts: Sequence[str],
        prompt: str | None,
        on_batch: Callable[[int], None] | None = None,
        normalize: bool = True,
    ) -> list[NDArray[np.float32]]:
        """Encode texts in one pass through the whole model, pooled by layer; return vectors `(n, d)` of each variant.

        Variants in `alone` get vectors too, which differ from their own.

        Args:
            texts: the texts.
            prompt: text put before each, or None.
            on_batch: called after each batch with the number of texts done so far.
            normalize: whether vectors are L2-normalized.
        """
        found = [np.empty((len(texts), variant.dimensions), np.float32) for variant in self.variants]
        done = 0
        batches = self.whole.batches(texts, prompt)
        with closing(self.whole.run_batches(batches, lambda batch: self._pool_layers(batch, normalize))) as results:
            for rows, _, vectors in results:
                for one, pooled in zip(found, vectors, strict=True):
                    one[rows] = pooled.cpu().numpy()
                done += len(rows)
                if on_batch:
                    on_batch(done)
        return found

    @torch.inference_mode()
    def _pool_layers(self, batch: Batch, normalize: bool) -> list[torch.Tensor]:
        """Run one batch through the whole model; return the vectors `(b, d)` of each variant that is known so far."""
        features = self.whole.run_transformer(batch)
        pooled = []
        for variant, modules in zip(self.variants, self.modules, strict=True):
            own = features | {"token_embeddings": self._read_layer(features["all_layer_embeddings"], variant)}
            pooled.append(self.whole.pool(own, modules, len(batch.rows), normalize))
        return pooled

    def _read_layer(self, states: Sequence[torch.Tensor], variant: Encoder) -> torch.Tensor:
        """Return the token embeddings in float32 of the model truncated after a variant's layer.

        Args:
            states: states before the first layer and after each layer, the last ones after the final norm.
            variant: the variant.
        """
        layer = variant.spec.layer
        assert layer is not None
        state = states[layer]
        if self.final_norm is not None and layer < len(states) - 1:
            state = self.final_norm(state)
        return state.float()
