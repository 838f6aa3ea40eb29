"""Texts through a model end to end, without padding between them, on a CPU.

Every product but the attention treats tokens one by one, so a batch may be one long row of tokens; attention then
runs text by text. A batch of 16 texts of very different lengths takes two thirds of the time that way. On GPUs flash
attention does the same, through sentence-transformers itself.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize, pad, scaled_dot_product_attention

from training.encoder.batching import Batch, Features, fill_budget

NAME = "lathe_unpadded"

ROUND_TOKENS = 32
"""Rows come in multiples of so many tokens: oneDNN makes each product of a new shape anew, which takes longer than
the product (5 ms instead of 1 for one of 600 × 384 × 1536 in bfloat16), and keeps 1,024 of them."""

DIFFERENCE = 1e-4
"""Between numbers of unit vectors in float32, padded and not; other sums in another order differ by 1e-6."""


Attention = Callable[..., tuple[torch.Tensor, Any]]
"""As transformers calls it: module, query, key, value, mask, and what else a model knows."""


class CannotUnpadError(Exception):
    """A model whose attention needs more than its texts' bounds."""


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    dropout: float = 0.0,
    cu_seq_lens_q: torch.Tensor | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Attention `(1, h, t, d)` within each text, told apart by where they begin; padded input goes the usual way.

    Raises:
        CannotUnpadError: for attention within a window.
    """
    if cu_seq_lens_q is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, is_causal=is_causal, dropout=dropout, **more
        )
    if more.get("sliding_window") is not None:
        raise CannotUnpadError
    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    lengths = cu_seq_lens_q.diff().tolist()
    columns = (torch.split(tensor, lengths, dim=2) for tensor in (query, key, value))  # slices cost a pass backwards
    grouped = key.shape[1] != query.shape[1]
    attended = [
        scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=causal, scale=scaling, enable_gqa=grouped
        ).transpose(1, 2)
        for q, k, v in zip(*columns, strict=True)
    ]
    return torch.cat(attended, dim=1), None


def allow_unpadded(model: Any, attention: Attention = attend) -> None:
    """Let a transformer take flattened input, by an attention that keeps within texts."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)


def flatten(features: Features, first_position: int) -> Features:
    """Padded features `(b, t)` as one row of their tokens, with where each text begins and each token's position.

    A text of nothing follows, up to a round number of tokens; see `ROUND_TOKENS`.
    """
    mask = features["attention_mask"].bool()
    lengths = mask.sum(1)
    missing = -int(lengths.sum()) % ROUND_TOKENS
    if missing:
        lengths = torch.cat([lengths, torch.tensor([missing])])
    found = {
        name: pad(value[mask], (0, missing))[None]
        if isinstance(value, torch.Tensor) and value.shape == mask.shape
        else value
        for name, value in features.items()
        if name != "attention_mask"
    }
    positions = torch.cat([(mask.cumsum(1) - 1)[mask], torch.arange(missing)])
    bounds = pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    longest = int(lengths.max())
    return found | {
        "position_ids": positions[None] + first_position,
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def flat_batches(features: Features, budget: int, first_position: int) -> Iterator[Batch]:
    """Texts tokenized together as flattened batches."""
    mask = features["attention_mask"]
    lengths = mask.sum(1).numpy().astype(np.int64)
    for run in fill_budget(lengths.tolist(), budget):
        some = {
            name: value[run] if isinstance(value, torch.Tensor) and value.shape == mask.shape else value
            for name, value in features.items()
        }
        tokens, flat = lengths[run], flatten(some, first_position)
        yield Batch(np.arange(run.start, run.stop), flat, tokens, flat["input_ids"].shape[1])


def first_position(model: torch.nn.Module) -> int:
    """The position of a text's first token: 0, but for models like RoBERTa that count from behind the padding's."""
    for module in model.modules():
        padding = getattr(module, "padding_idx", None)
        if isinstance(padding, int) and isinstance(getattr(module, "position_embeddings", None), torch.nn.Embedding):
            return padding + 1
    return 0


def flatten_together(several: Sequence[Features], first_position: int) -> Features:
    """Features of several columns, such as anchors and positives, as one row of all their tokens."""
    widest = max(features["attention_mask"].shape[1] for features in several)
    columns = {
        name: torch.cat([pad(features[name], (0, widest - features[name].shape[1])) for features in several])
        for name, value in several[0].items()
        if isinstance(value, torch.Tensor) and value.shape == several[0]["attention_mask"].shape
    }
    return flatten(columns, first_position)


def leave_padding_out(model: Any, probes: Sequence[str], attention: Attention = attend) -> tuple[int, str] | None:
    """Let a sentence-transformers model on a CPU take flattened input, if it then gives the same vectors of texts.

    Gives the position of a text's first token and the attention it had; None leaves the model as it was: some have
    masks of their own.
    """
    transformer = next(iter(model))
    if model.device.type != "cpu" or not hasattr(transformer, "auto_model"):
        return None
    before = str(transformer.auto_model.config._attn_implementation)
    try:
        features = model.preprocess(list(probes))
        with torch.inference_mode():
            padded = normalize(model(dict(features))["sentence_embedding"], dim=1)
            position = first_position(transformer.auto_model)
            allow_unpadded(transformer.auto_model, attention)
            flat = model(flatten_together([features], position))["sentence_embedding"][: len(probes)]
        if bool((normalize(flat, dim=1) - padded).abs().max() < DIFFERENCE):
            return position, before
    except Exception:  # models fail on input they do not expect with whatever error comes first
        pass
    transformer.auto_model.set_attn_implementation(before)
    return None
