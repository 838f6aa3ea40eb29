"""Positions that a model knows.

A model with a vector for each position cannot read a text that has more tokens.
"""

from typing import Any

import torch

TABLES = ("position_embeddings", "position_embedding", "embed_positions", "wpe")
"""Names by which the models of transformers call their table of position vectors."""

OTHER_INPUTS = ("vision", "visual", "image", "audio")
"""Parts of the names of modules that read other input than text."""


def find_first_position(model: torch.nn.Module) -> int:
    """Return the position id that a model gives to a text's first token. It is 0, or `padding_idx` + 1 for models like
    RoBERTa.
    """
    for module in model.modules():
        padding = getattr(module, "padding_idx", None)
        if isinstance(padding, int) and isinstance(getattr(module, "position_embeddings", None), torch.nn.Embedding):
            return padding + 1
    return 0


def count_positions(model: Any) -> int | None:
    """Return the number of tokens of a text that a transformer has position vectors for. Returns None if the model has
    no such vectors, as with rotary or relative positions.

    RoBERTa, MPNet and XLM-R have vectors for `padding_idx` + 1 positions that no token of a text is at; BART and OPT
    for two.

    Args:
        model: model of transformers, with its `config`.
    """
    counts = []
    for path, module in model.named_modules():
        *parents, name = path.split(".")
        is_text = not any(word in parent for parent in parents for word in OTHER_INPUTS)
        if name in TABLES and isinstance(module, torch.nn.Embedding) and is_text:
            counts.append(module.num_embeddings - int(getattr(module, "offset", 0)))

    if not counts:
        return None

    config = model.config.get_text_config()
    stated = getattr(config, "max_position_embeddings", None)
    if isinstance(stated, int) and stated > 0:  # some tables are larger than what the model takes
        counts.append(stated)

    return min(counts) - find_first_position(model)
