"""Which chain a worker is to load; no more than that, for whoever only names one."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ChainRef:
    """A chain as a worker finds it: the folder of its version, what it must hold, and how it is folded."""

    folder: Path
    digest: str
    dimensions: int | None
    normalize: bool
