"""Which texts go through a model together: as many as fit a budget of tokens, of like length."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

BYTES_PER_TOKEN = 4
"""Of English in UTF-8, about; Chinese takes 3. Only plans rest on it: true lengths come from the tokenizer."""

Features = dict[str, Any]
"""What a model takes: tensors `(texts, tokens)` by name, and settings beside them."""


@dataclass(frozen=True)
class Batch:
    """Tokenized texts that go through the model together.

    Attributes:
        rows: places `(b,)` of its texts among those tokenized together.
        features: the model's input, padded to the longest of them.
        tokens: true lengths `(b,)`.
        padded: tokens the model computes, padding included.
    """

    rows: NDArray[np.int64]
    features: Features
    tokens: NDArray[np.int64]
    padded: int


def estimated_tokens(text: str, max_length: int) -> int:
    """About how many tokens a model reads of a text."""
    if len(text) >= BYTES_PER_TOKEN * max_length:  # its bytes, of which there are as many at least, need no counting
        return max_length
    return min(max_length, 2 + len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def longest_first(lengths: Sequence[int]) -> list[int]:
    """Places of texts by falling length, so that neighbours need little padding."""
    return sorted(range(len(lengths)), key=lambda index: -lengths[index])


def cut_to_budget(lengths: Sequence[int], budget: int, slack: int) -> Iterator[slice]:
    """Runs of texts that go through the model together; at least one text each.

    Args:
        lengths: tokens of each text, longest first.
        budget: tokens of a run, padded to its first text.
        slack: tokens of padding that cost less than another pass through the model.
    """
    start = padding = 0
    for place, length in enumerate(lengths):
        width = lengths[start]
        padding += width - length
        if place > start and ((place - start + 1) * width > budget or padding > slack):
            yield slice(start, place)
            start, padding = place, 0
    if lengths:
        yield slice(start, len(lengths))


def fill_budget(lengths: Sequence[int], budget: int) -> Iterator[slice]:
    """Runs of texts, in any order, whose tokens fill a budget without padding; at least one text each."""
    start = tokens = 0
    for place, length in enumerate(lengths):
        tokens += length
        if place > start and tokens > budget:
            yield slice(start, place)
            start, tokens = place, length
    if lengths:
        yield slice(start, len(lengths))


def split_features(features: Features, budget: int, slack: int, padding_side: str) -> Iterator[Batch]:
    """Texts tokenized together as batches by their true lengths, without the columns that are padding only.

    Inputs that come flattened (unpadded, for flash attention) are one batch already.
    """
    if "attention_mask" not in features:
        tokens = np.diff(features["cu_seq_lens_q"].cpu().numpy()).astype(np.int64)
        yield Batch(np.arange(len(tokens)), features, tokens, int(tokens.sum()))
        return
    mask = features["attention_mask"]
    lengths = mask.sum(1).numpy().astype(np.int64)
    order = np.array(longest_first(lengths.tolist()), dtype=np.int64)
    for run in cut_to_budget(lengths[order].tolist(), budget, slack):
        rows = order[run]
        width = int(lengths[rows[0]])
        columns = slice(mask.shape[1] - width, None) if padding_side == "left" else slice(0, width)
        chosen = {
            name: value[torch.from_numpy(rows)][:, columns]
            if isinstance(value, torch.Tensor) and value.shape == mask.shape
            else value
            for name, value in features.items()
        }
        yield Batch(rows, chosen, lengths[rows], width * len(rows))
