"""Reference to a chain for a worker process.

It has a file of its own, so that referring to a chain imports nothing else.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lathe.transforms.base import Side


@dataclass(frozen=True)
class ChainRef:
    """Reference from which a worker loads a chain.

    Attributes:
        folder: artifact folder of the version.
        digest: SHA-256 that the folder's tensors must have.
        dimensions: output dimensions; None for all.
        normalize: whether outputs are normalized.
        side: side of a search that is transformed.
    """

    folder: Path
    digest: str
    dimensions: int | None
    normalize: bool
    side: "Side" = "document"
