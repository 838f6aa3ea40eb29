"""Options of worker processes; apart from them, so that settings need not import worker code."""

from dataclasses import dataclass


@dataclass(frozen=True)
class WorkerOptions:
    """Options of a worker process.

    Attributes:
        device: torch device; None selects the best available.
        threads: number of CPU threads.
        batch_tokens: maximum tokens of a batch, padding included; None selects by device.
        seconds: time without reading or writing after which a worker is considered dead.
    """

    device: str | None = None
    threads: int = 1
    batch_tokens: int | None = None
    seconds: float = 120.0
