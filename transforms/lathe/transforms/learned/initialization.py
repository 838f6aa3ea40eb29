"""Random initial values of trained weights."""

from collections.abc import Sequence

import torch
from torch import Tensor


def uniform_start(shape: Sequence[int], fan_in: int, generator: torch.Generator) -> Tensor:
    """Draw a float32 CPU tensor of `shape` from U(−1/√fan_in, 1/√fan_in), as `torch.nn.Linear` does."""
    start: Tensor = (2 * torch.rand(*shape, generator=generator) - 1) / fan_in**0.5
    return start
