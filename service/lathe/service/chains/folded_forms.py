"""What a worker process knows of a chain: a reference to it, and its folded forms.

A folded form has the affine steps multiplied into one, for the dimensions that a request names, and for queries or for
documents. Referring to a chain imports nothing else of Lathe.
"""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cachetools import LRUCache

if TYPE_CHECKING:
    from lathe.transforms.base import Side
    from lathe.transforms.chain import Chain


MAX_SHORT_BYTES = 16_000_000
"""Maximum bytes of the forms of a chain with fewer than all dimensions. Clients choose these, in any number."""
FORM_BYTES = 4_096
"""Bytes that a form takes besides its tensors, roughly."""


class FoldedForms:
    """Folded forms of one chain of transforms, kept in bounded memory for several threads.

    The forms with all dimensions are at most four. A form with fewer dimensions shares their tensors if it can, and is
    folded separately if not.

    Args:
        chain: chain to fold.
        device: torch device of the forms; None leaves them on the chain's device.
    """

    def __init__(self, chain: "Chain", device: str | None = None) -> None:
        self.chain = chain
        self.device = device
        self.guard = threading.Lock()
        self.whole: dict[tuple[bool, Side], Chain] = {}
        self.short: LRUCache[tuple[int, bool, Side], tuple[Chain, int]] = LRUCache(
            MAX_SHORT_BYTES, getsizeof=lambda entry: entry[1]
        )

    def find(self, dimensions: int | None, normalize: bool, side: "Side") -> "Chain | None":
        """Return the folded chain from the cache, or None if it is not cached. The arguments are as for `get`."""
        with self.guard:
            if dimensions is None:
                return self.whole.get((normalize, side))
            entry = self.short.get((dimensions, normalize, side))
        return None if entry is None else entry[0]

    def get(self, dimensions: int | None, normalize: bool, side: "Side") -> "Chain":
        """Return the chain with its affine steps folded into one for some dimensions, from the cache or by folding.

        Args:
            dimensions: output dimensions; None for all.
            normalize: whether outputs are unit vectors.
            side: whether the form is for queries or documents; queries are not quantized.

        Raises:
            InputError: for dimensions that the chain cannot serve.
        """
        cached = self.find(dimensions, normalize, side)
        if cached is not None:
            return cached

        if dimensions is None:
            whole = self._move_to_device(self.chain.fold(None, normalize, side))
            with self.guard:
                # Two threads may have folded at once: both return the form that was stored first.
                return self.whole.setdefault((normalize, side), whole)

        form, unshared_bytes = self._cut(dimensions, normalize, side)
        # The cache refuses an entry larger than itself. Such a form is folded again for each request.
        if unshared_bytes <= MAX_SHORT_BYTES:
            with self.guard:
                self.short[dimensions, normalize, side] = form, unshared_bytes
        return form

    def _cut(self, dimensions: int, normalize: bool, side: "Side") -> "tuple[Chain, int]":
        """Fold the chain to fewer dimensions, and return `(folded chain, bytes that it takes of its own)`.

        The tensors are shared with the chain of all dimensions if that can be sliced.
        """
        self.chain.require_dimensions(dimensions)
        # Where the last product of the whole form can be sliced, the short form is a view of its tensors.
        cut = self.get(None, normalize, side).truncate_folded(dimensions)
        if cut is not None:
            return cut, FORM_BYTES
        form = self._move_to_device(self.chain.fold(dimensions, normalize, side))
        return form, FORM_BYTES + sum(tensor.nbytes for tensor in form.buffers())

    def _move_to_device(self, form: "Chain") -> "Chain":
        return form if self.device is None else form.to(self.device)


@dataclass(frozen=True)
class ChainRef:
    """Reference from which a worker process loads a chain of transforms.

    Attributes:
        folder: artifact folder of the version.
        digest: SHA-256 that the folder's tensors must have.
        dimensions: output dimensions; None for all.
        normalize: whether outputs are normalized.
        side: whether queries or documents are transformed.
    """

    folder: Path
    digest: str
    dimensions: int | None
    normalize: bool
    side: "Side" = "document"
