"""How workers run; settings make these without knowing what a worker is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class WorkerOptions:
    """How workers run.

    Attributes:
        device: None takes the best there is.
        threads: of each on a CPU.
        batch_tokens: of one pass; None takes what suits the device.
        seconds: after which one that neither reads nor writes is taken for dead.
    """

    device: str | None = None
    threads: int = 1
    batch_tokens: int | None = None
    seconds: float = 120.0
