"""Fingerprint of an encoder, which differs between encoders with different vector spaces."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch


def compute_fingerprint(
    model: Any, max_length: int, prompts: Mapping[str, str], without_chat_template: bool = False
) -> str:
    """Hash a model's weights, modules, maximum length and prompts, and return the hash as 32 hexadecimal digits.

    `without_chat_template` says that the model's chat template was switched off, which gives other vectors.

    The weights are hashed as loaded, so a model has the same fingerprint from a package, a folder or the Hub. Its name
    and the dtype it runs in later do not matter.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)

    settings = {
        "modules": [_describe_module(module) for module in model],
        "max_length": max_length,
        "prompts": prompts,
    }
    if without_chat_template:
        settings["chat_template"] = "off"

    digest.update(json.dumps(settings, sort_keys=True).encode())
    return digest.hexdigest()[:32]


def _describe_module(module: Any) -> str:
    """Describe a module's settings that its weights do not show, as a text for the hash. These are its class, pooling
    mode and activation, and whether prompts are pooled, texts put in lower case, and inputs added to outputs.
    """
    description = f"{type(module).__name__} {getattr(module, 'pooling_mode', '')}"
    description += "" if getattr(module, "include_prompt", True) else " without prompt"
    description += " in lower case" if getattr(module, "do_lower_case", False) else ""
    description += " residual" if getattr(module, "use_residual", False) else ""
    activation = getattr(module, "activation_function", None)
    return description if activation is None else f"{description} {type(activation).__name__}"
