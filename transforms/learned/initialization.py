"""Random starts of trained weights."""

from collections.abc import Sequence

import torch
from torch import Tensor


def uniform_start(shape: Sequence[int], inputs: int, generator: torch.Generator) -> Tensor:
    """Draw what a linear layer of torch starts from: uniform between ±1/√inputs."""
    start: Tensor = (2 * torch.rand(*shape, generator=generator) - 1) / inputs**0.5
    return start
