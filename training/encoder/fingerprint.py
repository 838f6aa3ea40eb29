"""What tells two encoders' vector spaces apart."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch


def fingerprint(model: Any, max_length: int, prompts: Mapping[str, str]) -> str:
    """Return a hash of a model's weights and modules, the maximum length and the prompts.

    The weights are hashed as loaded, so that the same model from a package, a folder or the hub
    is the same, and its dtype and name do not matter.
    """
    digest = hashlib.sha256()
    for name, tensor in tensors_by_name(model):
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    rest = {
        "modules": [describe_module(module) for module in model],
        "max_length": max_length,
        "prompts": prompts,
    }
    digest.update(json.dumps(rest, sort_keys=True).encode())
    return digest.hexdigest()[:32]


def describe_module(module: Any) -> str:
    """What of a module its weights do not tell."""
    words = f"{type(module).__name__} {getattr(module, 'pooling_mode', '')}"
    return words if getattr(module, "include_prompt", True) else f"{words} without prompt"


def tensors_by_name(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The model's weights in the order of their names."""
    yield from sorted(model.state_dict().items())
