"""Progress of experiments on the terminal."""

import sys


def show(fraction: float, message: str) -> None:
    """Print the progress in [0, 1] and a message over the line before, to stderr."""
    print(f"\r\x1b[K{fraction:4.0%} {message}", end="" if fraction < 1 else "\n", file=sys.stderr, flush=True)
