"""Reference to a chain for a worker process; a file of its own, so that referring to a chain imports nothing else."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ChainRef:
    """Reference from which a worker loads a chain.

    Attributes:
        folder: artifact folder of the version.
        digest: SHA-256 that the folder's tensors must have.
        dimensions: output dimensions; None for all.
        normalize: whether outputs are normalized.
        quantize: whether a quantizer is applied; not for queries.
    """

    folder: Path
    digest: str
    dimensions: int | None
    normalize: bool
    quantize: bool = True
