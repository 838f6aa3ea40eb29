"""Batches without padding: the tokens of several texts in one row, with attention within each text only.

All operations except attention treat tokens independently, so a batch can be one long row of tokens:

    row             │ text 1 │  text 2  │ 3 │ dummy │    ids and positions (1, t); positions start again in each text
    cu_seq_lens_q   0        8          18  21      32   bounds of the texts (texts + 1,)

A dummy text fills the row up to a multiple of `ROUND_TOKENS`. On a CPU, attention then runs text by text: a batch of 16
texts of very different lengths takes two thirds of the time that way. On a GPU, flash attention takes the bounds.

The keys of a text may be rounded up too: a text of `length` tokens has `width` keys, a multiple of `ROUND_KEYS`, and a
mask hides the added keys.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize, pad, scaled_dot_product_attention

from lathe.training.encoder.batching import Batch, Features, split_unpadded_batches
from lathe.training.encoder.model_checks import find_first_position
from lathe.transforms.products import prefers_onednn

NAME = "lathe_unpadded"
"""Name of the attention function for CPUs, registered with transformers. The attention function for GPUs has another
name, because names are shared by the whole process."""

ROUND_TOKENS = 32
"""The number of tokens of a flattened batch is a multiple of this number: oneDNN builds a new kernel for each new
shape, which takes longer than the product (5 ms instead of 1 for 600 × 384 × 1536 in bfloat16), and caches 1,024."""

ROUND_KEYS = 16
"""The number of keys of a text is rounded up to a multiple of this number, the floats of an AVX-512 register: PyTorch's
softmax computes the remainder of a row one by one, so attention within 31 tokens takes twice as long as within 32."""

MIN_PRODUCT_KEYS = 48
"""Minimum number of keys of a text whose attention in bfloat16 is computed by oneDNN's products, on AMD processors. On
Zen 4, a layer of MiniLM then takes .73 to .76 of the time for 40 and 240 tokens, and .64 for 512."""

MAX_WEIGHTS = 2**16
"""Maximum number of attention weights of each head that are computed together, unless one text has more. The weights
are then still in the processor's cache when they are read again."""

MAX_DIFFERENCE = 1e-4
"""Maximum difference between entries of unit vectors in float32, computed with and without padding. Sums in another
order differ by 1e-6."""


Attention = Callable[..., tuple[torch.Tensor, Any]]
"""Attention function as transformers calls it: module, query, key, value, mask, and the model's further arguments."""


class CannotUnpadError(Exception):
    """Error for a model whose attention needs more than the bounds of the texts."""


def attend_within_texts(
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
    """Compute scaled dot-product attention of texts in one row, each within itself. A sliding window raises.

    Input without `cu_seq_lens_q` is padded and is computed by transformers' own attention function. A model with a
    sliding window raises.

    Args:
        module: attention module, whose `is_causal` is the default.
        query: `(1, h, t, d)`, the tokens of all texts in one row.
        key: same shape as `query`; may have fewer heads.
        value: same shape as `key`.
        attention_mask: used for padded input only.
        scaling: factor of the scores; None is 1/√d.
        is_causal: whether a token attends to earlier tokens only; None takes the module's.
        dropout: probability of dropout.
        cu_seq_lens_q: offsets at which the texts begin, and the end `(texts + 1,)`; None for padded input.
        more: further arguments of the model.

    Returns:
        The outputs `(1, t, h, d)`, and None in place of attention weights.

    Raises:
        CannotUnpadError: if the model attends within a sliding window.
    """
    if cu_seq_lens_q is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        padded: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, is_causal=is_causal, dropout=dropout, **more
        )
        return padded
    if more.get("sliding_window") is not None:
        raise CannotUnpadError

    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    lengths = widths = cu_seq_lens_q.diff().tolist()
    learns = any(states.requires_grad for states in (query, key, value))  # cached masks allow no gradient

    grouped = key.shape[1] != query.shape[1]
    # On other processors PyTorch's kernel is faster, or the two have not been compared.
    if not (learns or causal or grouped or dropout) and query.dtype == torch.bfloat16 and _prefers_products():
        return _attend_by_products(query, key, value, lengths, scaling or query.shape[-1] ** -0.5), None

    if not learns and any(length % ROUND_KEYS for length in lengths):
        widths, positions = _plan_keys(tuple(lengths))
        key, value = _take_tokens(key, positions), _take_tokens(value, positions)

    # One (1, h, tokens of the text, d) slice of queries, keys and values for each text.
    splits = ((query, lengths), (key, widths), (value, widths))
    columns = (torch.split(tensor, sizes, dim=2) for tensor, sizes in splits)  # the gradient of slices is slower
    # A causal mask hides the repeated keys too: they come after the text's last token.
    masks = [
        None if causal or length == width else _build_mask(length, width, query.dtype)
        for length, width in zip(lengths, widths, strict=True)
    ]
    attended = [
        scaled_dot_product_attention(
            q, k, v, mask, dropout_p=dropout, is_causal=causal, scale=scaling, enable_gqa=grouped
        ).transpose(1, 2)
        for q, k, v, mask in zip(*columns, masks, strict=True)
    ]

    return torch.cat(attended, dim=1), None


def _prefers_products() -> bool:
    """Return whether oneDNN's bfloat16 products are faster than PyTorch's attention: on AMD's AVX-512 processors."""
    return prefers_onednn() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _attend_by_products(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: list[int], scaling: float
) -> torch.Tensor:
    """Compute the attention of texts in one row on a CPU, without dropout or causal mask, as `(1, t, h, d)`.

    Neighbouring texts with the same rounded number of keys are computed together. Texts with at least
    `MIN_PRODUCT_KEYS` keys use two matrix products, shorter texts PyTorch's attention. The length alone decides how, so
    that a text has the same vector alone and in a batch.
    """
    widths, positions = _plan_keys(tuple(lengths))
    states = [_take_tokens(tensor, positions)[0] for tensor in (query, key, value)]  # (h, p, d) each
    attended, first, start = [], 0, 0

    for width, neighbours in groupby(widths):
        last, step = first + len(list(neighbours)), max(1, MAX_WEIGHTS // width**2)
        for texts in (lengths[at : min(at + step, last)] for at in range(first, last, step)):
            stop = start + len(texts) * width
            # (texts, h, width, d) each
            q, k, v = (torch.unflatten(tensor[:, start:stop], 1, (-1, width)).transpose(0, 1) for tensor in states)
            output = _attend_to_keys(q, k, v, texts, scaling) if width >= MIN_PRODUCT_KEYS else None
            if output is None:
                mask = torch.cat([_build_mask(length, width, q.dtype) for length in texts])
                output = scaled_dot_product_attention(q, k, v, mask, scale=scaling)
            attended += [rows[:, :length].transpose(0, 1) for rows, length in zip(output, texts, strict=True)]
            start = stop
        first = last

    return torch.cat(attended)[None]


def _attend_to_keys(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: list[int], scaling: float
) -> torch.Tensor | None:
    """Compute attention of texts `(n, h, w, d)` to their first `lengths` keys by two products, or None on overflow.

    An attention weight may overflow because the softmax is computed without subtracting the maximum.
    """
    # Softmax does not change if the same number is subtracted from all scores of a query, here the score of the mean
    # key. The scores are then smaller and lose less to rounding. Their mean is 0, so softmax rarely overflows without
    # the usual subtraction of the maximum.
    centred = key - key.mean(2, keepdim=True)
    q, k, v = (states.contiguous().flatten(0, 1) for states in (query, centred, value))
    empty = q.new_empty(1, 1, 1)
    weights = torch.baddbmm(empty, q, k.transpose(1, 2), beta=0, alpha=scaling / math.log(2)).exp2_()

    for text, length in zip(torch.unflatten(weights, 0, (len(lengths), -1)), lengths, strict=True):
        text[..., length:] = 0
    sums = weights.sum(-1, keepdim=True)
    lowest, highest = sums.aminmax()
    if not (lowest > 0 and highest < math.inf):  # also true for NaN
        return None
    return torch.bmm(weights, v).div_(sums).view_as(query)


def attend_on_gpu(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int = 0,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Compute flash attention within the texts of one row on a GPU. Padded input or another attention raises.

    Padded input and models with another attention raise. The function computes only full attention from every token of
    a text to every other, with equal numbers of heads for queries and keys and scores divided by √d.

    Returns:
        The outputs `(1, t, h, d)`, and None in place of attention weights.

    Raises:
        CannotUnpadError: for padded input or another attention.
    """
    from torch.nn.attention.varlen import varlen_attn  # since PyTorch 2.10

    causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
    scaled = scaling is None or math.isclose(scaling, query.shape[-1] ** -0.5)
    if cu_seq_lens_q is None or causal or not scaled or query.shape != key.shape or more.get("sliding_window"):
        raise CannotUnpadError

    # (t, h, d) each
    queries, keys, values = (states[0].transpose(0, 1).contiguous() for states in (query, key, value))
    attended: Any = varlen_attn(queries, keys, values, cu_seq_lens_q, cu_seq_lens_q, max_length_q, max_length_q)
    return attended[None], None


@lru_cache(maxsize=64)  # called by each layer
def _plan_keys(lengths: tuple[int, ...]) -> tuple[list[int], torch.Tensor]:
    """Round the number of keys of each text in a row up to a multiple of `ROUND_KEYS`, and compute the keys' positions.

    The added keys repeat the text's last token: tokens of another text could hold NaN.

    Returns:
        The number of keys of each text, and the positions of all keys in the row.
    """
    widths = [length + -length % ROUND_KEYS for length in lengths]
    starts = np.cumsum([0, *lengths[:-1]])
    positions = [
        start + np.minimum(np.arange(keys), length - 1)
        for start, length, keys in zip(starts, lengths, widths, strict=True)
    ]
    return widths, torch.from_numpy(np.concatenate(positions))


def _take_tokens(states: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return the states `(1, h, p, d)` of the tokens at positions `(p,)`, selected from `(1, h, t, d)`."""
    _, heads, tokens, dimensions = states.shape
    rows = states.transpose(1, 2).reshape(tokens, heads * dimensions)  # no copy: a token's heads are contiguous
    return rows.index_select(0, positions).view(1, len(positions), heads, dimensions).transpose(1, 2)


@lru_cache(maxsize=1024)
def _build_mask(length: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Build the mask `(1, 1, 1, width)` of a text's keys: 0 for the first `length` keys, -inf for the others."""
    mask = torch.zeros(1, 1, 1, width, dtype=dtype)
    mask[..., length:] = -torch.inf
    return mask


def enable_unpadded(model: Any, attention: Attention = attend_within_texts, name: str = NAME) -> None:
    """Set a transformer's attention to a function for input in one row, in place, and register it for the process.

    The function is registered with transformers under `name`.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, sdpa_mask)
    model.set_attn_implementation(name)


def flatten(features: Features, first_position: int) -> Features:
    """Concatenate the tokens of padded features `(b, t)` into one row `(1, t)` without padding.

    The row also has position ids and the bounds of the texts. A dummy text fills the row up to a multiple of
    `ROUND_TOKENS`.

    Args:
        features: padded input with an `attention_mask`, which the result lacks.
        first_position: position id of a text's first token.
    """
    return _add_bounds(*_select_tokens(features), first_position)


def _select_tokens(features: Features) -> tuple[Features, NDArray[np.int64]]:
    """Return padded features as one row of tokens `(t,)` without mask, and the number of tokens of each text `(b,)`."""
    mask = features["attention_mask"].bool()
    row = {
        name: value[mask] if isinstance(value, torch.Tensor) and value.shape == mask.shape else value
        for name, value in features.items()
        if name != "attention_mask"
    }
    return row, mask.sum(1).numpy().astype(np.int64)


def _add_bounds(row: Features, lengths: NDArray[np.int64], first_position: int) -> Features:
    """Convert a row of tokens to a model's input `(1, t)`, with position ids and the bounds of the texts.

    A dummy text fills the row up to a multiple of `ROUND_TOKENS`.
    """
    tokens = int(lengths.sum())
    missing = -tokens % ROUND_TOKENS
    flat = {name: pad(value, (0, missing))[None] if _is_row(value, tokens) else value for name, value in row.items()}
    if missing:
        lengths = np.append(lengths, missing)

    # Positions start at 0 in each text.
    ends = np.cumsum(lengths)
    positions = np.arange(tokens + missing) - np.repeat(ends - lengths, lengths)
    bounds = torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32))
    longest = int(lengths.max())

    return flat | {
        "position_ids": torch.from_numpy(positions)[None] + first_position,
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def _is_row(value: Any, tokens: int) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == (tokens,)


def split_flat_batches(features: Features, budget: int, first_position: int) -> Iterator[Batch]:
    """Split padded texts, in the order given, into batches of at most `budget` tokens, each with its tokens in one row.

    A text longer than the budget is a batch of its own.

    Args:
        features: padded input with an `attention_mask`.
        budget: maximum tokens of a batch's texts.
        first_position: position id of a text's first token.
    """
    return split_row(*_select_tokens(features), budget, first_position)


def split_row(row: Features, lengths: NDArray[np.int64], budget: int, first_position: int) -> Iterator[Batch]:
    """Split texts whose tokens are in one row into batches of at most `budget` tokens, and yield the batches in order.

    The tokens of a batch are in one row. A text with more tokens than the budget is a batch of its own. Tokens of the
    dummy text that fills a batch are not counted.

    Args:
        row: input of the model without mask, with tensors of all tokens `(t,)`.
        lengths: number of tokens of each text.
        budget: maximum tokens of a batch's texts.
        first_position: position id of a text's first token.
    """
    ends = np.concatenate([[0], np.cumsum(lengths)])
    for bounds in split_unpadded_batches(lengths.tolist(), budget):
        columns = slice(ends[bounds.start], ends[bounds.stop])
        selected = {name: value[columns] if _is_row(value, ends[-1]) else value for name, value in row.items()}
        tokens, flat = lengths[bounds], _add_bounds(selected, lengths[bounds], first_position)
        yield Batch(np.arange(bounds.start, bounds.stop), flat, tokens, flat["input_ids"].shape[1])


def flatten_together(feature_columns: Sequence[Features], first_position: int) -> Features:
    """Concatenate the tokens of several padded inputs, such as anchors and positives, into one row without padding.

    The texts of the first input come first. The result also has position ids and the bounds of the texts. Entries that
    are not tensors of tokens are left out.
    """
    longest = max(features["attention_mask"].shape[1] for features in feature_columns)
    columns = {
        name: torch.cat([pad(features[name], (0, longest - features[name].shape[1])) for features in feature_columns])
        for name, value in feature_columns[0].items()
        if isinstance(value, torch.Tensor) and value.shape == feature_columns[0]["attention_mask"].shape
    }
    return flatten(columns, first_position)


def try_unpadding(
    model: Any,
    probes: Sequence[str],
    attention: Attention = attend_within_texts,
    alone: NDArray[np.float32] | None = None,
) -> tuple[int, str] | None:
    """Switch a CPU model in place to unpadded input, unless the vectors of `probes` change. None if not switched.

    The vectors are compared with the vectors of each text alone, which padding cannot change. If the vectors differ or
    the model fails, the previous attention is restored and the result is None. On another device, or for a static
    model, the result is None as well.

    Args:
        model: the `SentenceTransformer`, in float32.
        probes: texts whose vectors are compared.
        attention: attention function for input in one row.
        alone: unit vectors `(n, d)` of each probe alone; None computes them.

    Returns:
        The position id of a text's first token and the name of the previous attention implementation, or None if the
        model was not switched.
    """
    transformer = next(iter(model))
    if model.device.type != "cpu" or not hasattr(transformer, "auto_model"):
        return None

    before = str(transformer.auto_model.config._attn_implementation)
    try:
        features = model.preprocess(list(probes))
        with torch.inference_mode():
            if alone is None:
                singles = [model(model.preprocess([probe]))["sentence_embedding"] for probe in probes]
                alone = normalize(torch.cat(singles), dim=1).numpy()
            position = find_first_position(transformer.auto_model)
            enable_unpadded(transformer.auto_model, attention)
            flat = model(flatten_together([features], position))["sentence_embedding"][: len(probes)]
        if np.abs(normalize(flat, dim=1).numpy() - alone).max() < MAX_DIFFERENCE:
            return position, before
    except Exception:  # models fail on unexpected input with errors of any class
        pass

    transformer.auto_model.set_attn_implementation(before)
    return None
