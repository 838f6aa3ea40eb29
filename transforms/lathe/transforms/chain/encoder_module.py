"""A chain as the last module of a `SentenceTransformer` in memory."""

from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from lathe.transforms.base import Side
from lathe.transforms.errors import NotFittedError, StepError


class FittedChain(Protocol):
    """Protocol of what the module applies: a fitted `Chain`."""

    @property
    def output_dimensions(self) -> int | None:
        """Number of output dimensions, or None if the chain is not fitted."""

    def __call__(self, x: Tensor, *, side: Side = "document") -> Tensor:
        """Map rows `(n, d)` as one side of a search."""

    def dequantize(self, codes: Any) -> Any:
        """Decode codes to floats.

        Floats are returned unchanged.
        """


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

    def __init__(self, chain: FittedChain) -> None:
        super().__init__()
        self.chain = chain

    def forward(self, features: dict[str, Any], task: str | None = None) -> dict[str, Any]:
        """Replace the embeddings `(n, d)` in `sentence_embedding` by the chain's outputs, in place. The outputs are
        floats `(n, k)`, and the features are returned.

        Args:
            features: what the modules before this one computed; changed in place.
            task: `query` maps the embeddings as queries; anything else maps them as documents.
        """
        dtype = next((b.dtype for b in self.buffers() if b.is_floating_point()), torch.float32)
        embeddings: Tensor = features["sentence_embedding"].to(dtype)

        if task == "query":
            features["sentence_embedding"] = self.chain(embeddings, side="query")
        else:
            features["sentence_embedding"] = self.chain.dequantize(self.chain(embeddings))

        return features

    def get_embedding_dimension(self) -> int:
        """Return the number of dimensions of the model's embeddings.

        Raises:
            NotFittedError: if the chain is not fitted.
        """
        if self.chain.output_dimensions is None:
            raise NotFittedError("the dimensions of a chain are known once it is fitted")
        return self.chain.output_dimensions

    def save(self, output_path: str, *args: object, **kwargs: object) -> None:
        """Refuse to save the module by always raising `StepError`. The model's folder would need this library wherever
        it is loaded.

        Raises:
            StepError: always, with the command that writes a model for any machine.
        """
        raise StepError(
            "a model with a chain in memory cannot be saved; `lathe export NAME --to DIR --format "
            "sentence-transformers` writes one that other machines load"
        )
