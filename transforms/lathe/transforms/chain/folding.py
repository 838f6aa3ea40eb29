"""What a fitted chain is applied as: affine maps multiplied into one, or the last module of a `SentenceTransformer`.

Runs of affine steps are multiplied into one, so that applying a chain costs one product.
"""

from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from lathe.transforms.base import Map, Side
from lathe.transforms.errors import NotFittedError, StepError
from lathe.transforms.linear import Affine, Normalize, Selection


def fold_primitives(primitives: list[Map]) -> list[Map]:
    """Merge neighbouring maps of a list into as few maps as possible with the same outputs.

    Matrices are multiplied in float64. A normalization before bias-free maps that end in a normalization changes
    nothing and is dropped; a normalization right after an affine map becomes part of that map.

    Args:
        primitives: maps in order, as `Map.primitives` returns them.

    Returns:
        A new list of maps.
    """
    folded: list[Map] = []
    for position, primitive in enumerate(primitives):
        if isinstance(primitive, Normalize) and _is_normalize_redundant(primitives[position + 1 :]):
            continue
        merged = _merge(folded[-1], primitive) if folded else None
        if merged is None:
            folded.append(primitive)
        else:
            folded[-1] = merged

    return folded


def _is_normalize_redundant(following: list[Map]) -> bool:
    """Return whether an L2 normalization before the maps `following` has no effect on their outputs.

    It has none if only linear maps (selections and affine maps without a bias) come before the next normalization.
    """
    for step in following:
        if isinstance(step, Normalize):
            return True
        # W(x/‖x‖) = Wx/‖x‖, a factor that the next normalization removes; a bias would not have that factor.
        if not isinstance(step, Selection) and not (isinstance(step, Affine) and step.bias is None):
            return False
    return False


def _merge(before: Map, step: Map) -> Map | None:
    """Return one affine map or selection with the outputs of `before` followed by `step`, or None if there is none."""
    # After a normalization, nothing can be merged into an affine map: W₂(y/‖y‖) has a factor for each row.
    if isinstance(before, Affine) and not before.normalize:
        if isinstance(step, Affine):
            return before.then(step)
        if isinstance(step, Selection):
            return step.select_from(before)
        if isinstance(step, Normalize):
            return before.normalized()

    if isinstance(before, Selection):
        if isinstance(step, Affine):
            return before.as_affine().then(step)
        if isinstance(step, Selection):
            return Selection(step.dimensions, before.columns[step.columns], before.input_dimensions)

    return None


def list_affine_maps(step: Map) -> list[Affine] | None:
    """Return the affine maps that a fitted step consists of, in order.

    Normalizations are left out, and selections become affine maps.

    Returns:
        The maps, or None if the step has other maps too. The list is empty if the step only normalizes.
    """
    parts = []
    for primitive in step.primitives():
        if isinstance(primitive, Selection):
            parts.append(primitive.as_affine())
        elif isinstance(primitive, Affine):
            parts.append(primitive)
        # A normalization is left to the caller: moments cannot pass one, and a subspace is not changed by one.
        elif not isinstance(primitive, Normalize):
            return None

    return parts


class _FoldableChain(Protocol):
    """Protocol of what `EncoderModule` applies: a fitted `Chain`."""

    @property
    def output_dimensions(self) -> int | None:
        """Number of output dimensions, or None if the chain is not fitted."""

    def __call__(self, x: Tensor, *, side: Side = "document") -> Tensor:
        """Map rows `(n, d)` as queries or as documents, and return floats or codes `(n, k)`."""

    def dequantize(self, codes: Any) -> Any:
        """Decode codes to floats, and return floats unchanged."""


class EncoderModule(nn.Module):
    """Module that applies a chain to the sentence embeddings of a `SentenceTransformer`.

    It has the methods that sentence-transformers calls, without importing that library. `encode` and
    `encode_document` return what `Chain.floats` returns: codes are decoded, so that the model's similarities hold.
    `encode_query` returns what `Chain.transform_queries` returns.

    Attributes:
        chain: the fitted chain.
        forward_kwargs: names of the arguments of `encode` that the library passes on to `forward`.
    """

    forward_kwargs: ClassVar[set[str]] = {"task"}

    def __init__(self, chain: _FoldableChain) -> None:
        super().__init__()
        self.chain = chain

    def forward(self, features: dict[str, Any], task: str | None = None) -> dict[str, Any]:
        """Replace the embeddings `(n, d)` under `sentence_embedding` by the chain's float outputs `(n, k)`.

        Args:
            features: what the modules before this one computed; changed in place.
            task: `query` maps the embeddings as queries; anything else maps them as documents.

        Returns:
            The same dict `features`.
        """
        # A model may run in half precision; the chain is applied in the dtype of its own buffers.
        dtype = next((b.dtype for b in self.buffers() if b.is_floating_point()), torch.float32)
        embeddings: Tensor = features["sentence_embedding"].to(dtype)

        if task == "query":
            features["sentence_embedding"] = self.chain(embeddings, side="query")
        else:
            features["sentence_embedding"] = self.chain.dequantize(self.chain(embeddings))

        return features

    def get_embedding_dimension(self) -> int:
        """Return the number of dimensions of the embeddings that the chain outputs.

        sentence-transformers calls this method.

        Raises:
            NotFittedError: if the chain is not fitted.
        """
        if self.chain.output_dimensions is None:
            raise NotFittedError("the dimensions of a chain are known once it is fitted")
        return self.chain.output_dimensions

    def save(self, output_path: str, *args: object, **kwargs: object) -> None:
        """Always raise `StepError`: a saved model would need Lathe wherever it is loaded, so saving is refused.

        Raises:
            StepError: with the command that exports a model for any machine.
        """
        raise StepError(
            "a model with a chain in memory cannot be saved; `lathe export NAME --to DIR --format "
            "sentence-transformers` writes one that other machines load"
        )
