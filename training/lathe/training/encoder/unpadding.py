"""Padding-free batches: the tokens of several texts in one row, with attention within each text only.

All operations but the attention treat tokens independently, so a batch can be one long row of tokens. On a CPU,
attention then runs text by text: a batch of 16 texts of very different lengths takes two thirds of the time that way.
On a GPU, flash attention takes the bounds of the texts.
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
"""Name under which the attention is registered with transformers. The attention of another device has its own, as the
names are those of the whole process."""

ROUND_TOKENS = 32
"""Number of tokens of which flattened batches have a multiple: oneDNN builds a new kernel for each new shape, which
takes longer than the product (5 ms instead of 1 for one of 600 × 384 × 1536 in bfloat16), and caches 1,024 of them."""

ROUND_KEYS = 16
"""Number of which a text's keys are made a multiple, the floats of a register of AVX-512: PyTorch's softmax computes
the rest of each row one by one, so that attention within 31 tokens takes twice the time of that within 32."""

MIN_PRODUCT_KEYS = 48
"""Number of a text's keys from which its attention in bfloat16 is computed by oneDNN's products on AMD's processors. On
Zen 4, a layer of MiniLM then takes .73 to .76 of the time for 40 and 240 tokens, and .64 for 512."""

MAX_WEIGHTS = 2**16
"""Maximum number of attention weights of each head that are computed together, unless one text has more. Those of a
layer are then still cached when they are read again."""

MAX_DIFFERENCE = 1e-4
"""Maximum difference between entries of unit vectors in float32, computed with and without padding. Sums in another
order differ by 1e-6."""


Attention = Callable[..., tuple[torch.Tensor, Any]]
"""Attention function as transformers calls it: module, query, key, value, mask, and the model's further arguments."""


class CannotUnpadError(Exception):
    """Error for a model whose attention cannot be computed from the bounds of the texts alone."""


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
    """Compute scaled dot-product attention for texts concatenated in one row, each attending to its own tokens only.

    Input without `cu_seq_lens_q` is padded and goes to transformers' own attention.

    Args:
        module: attention module, whose `is_causal` is the default.
        query: `(1, h, t, d)`, the tokens of all texts in one row.
        key: as `query`; may have fewer heads.
        value: as `key`.
        attention_mask: used for padded input only.
        scaling: factor of the scores; None is 1/√d.
        is_causal: whether a token attends to earlier ones only; None takes the module's.
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
    learns = any(states.requires_grad for states in (query, key, value))  # masks made in inference allow no gradient

    grouped = key.shape[1] != query.shape[1]
    # On other processors PyTorch's kernel is the faster one, or nobody has measured it.
    if not (learns or causal or grouped or dropout) and query.dtype == torch.bfloat16 and _prefers_products():
        return _attend_by_products(query, key, value, lengths, scaling or query.shape[-1] ** -0.5), None

    if not learns and any(length % ROUND_KEYS for length in lengths):
        widths, positions = _plan_keys(tuple(lengths))
        key, value = _take_tokens(key, positions), _take_tokens(value, positions)

    # One (1, h, tokens of the text, d) slice of queries, keys and values for each text.
    splits = ((query, lengths), (key, widths), (value, widths))
    columns = (torch.split(tensor, sizes, dim=2) for tensor, sizes in splits)  # slices cost a pass backwards
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
    """Compute the attention of `attend_within_texts` without dropout and causal masks, and return it as `(1, t, h, d)`.

    Neighbours of the same rounded length are computed together. The length alone decides how, so that a text has the
    same vector alone and in a batch.
    """
    widths, positions = _plan_keys(tuple(lengths))
    states = [_take_tokens(each, positions)[0] for each in (query, key, value)]  # (h, p, d) each
    attended, first, start = [], 0, 0

    for width, neighbours in groupby(widths):
        last, step = first + len(list(neighbours)), max(1, MAX_WEIGHTS // width**2)
        for texts in (lengths[at : min(at + step, last)] for at in range(first, last, step)):
            stop = start + len(texts) * width
            # (texts, h, width, d) each
            q, k, v = (torch.unflatten(each[:, start:stop], 1, (-1, width)).transpose(0, 1) for each in states)
            output = _multiply(q, k, v, texts, scaling) if width >= MIN_PRODUCT_KEYS else None
            if output is None:
                mask = torch.cat([_build_mask(length, width, q.dtype) for length in texts])
                output = scaled_dot_product_attention(q, k, v, mask, scale=scaling)
            attended += [rows[:, :length].transpose(0, 1) for rows, length in zip(output, texts, strict=True)]
            start = stop
        first = last

    return torch.cat(attended)[None]


def _multiply(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: list[int], scaling: float
) -> torch.Tensor | None:
    """Compute the attention of texts `(n, h, w, d)`, which attend to their first `lengths` keys, by two products.

    The result is None if a weight is too large for that.
    """
    # Softmax does not change if all scores of a query change by the same, here by that with the mean key. The scores
    # are smaller then and lose less to rounding. Their mean is 0, so the weights need no division by the largest.
    centred = key - key.mean(2, keepdim=True)
    q, k, v = (states.contiguous().flatten(0, 1) for states in (query, centred, value))
    empty = q.new_empty(1, 1, 1)
    weights = torch.baddbmm(empty, q, k.transpose(1, 2), beta=0, alpha=scaling / math.log(2)).exp2_()

    for text, length in zip(torch.unflatten(weights, 0, (len(lengths), -1)), lengths, strict=True):
        text[..., length:] = 0
    sums = weights.sum(-1, keepdim=True)
    lowest, highest = sums.aminmax()
    if not (lowest > 0 and highest < math.inf):  # NaN neither
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
    """Compute the attention of `attend_within_texts` on a GPU, by PyTorch's flash attention in half precision.

    Returns:
        The outputs `(1, t, h, d)`, and None in place of attention weights.

    Raises:
        CannotUnpadError: for padded input, or if the model attends otherwise than from every token to every other,
            with as many heads of keys as of queries and scores divided by √d.
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


@lru_cache(maxsize=64)  # asked by each layer
def _plan_keys(lengths: tuple[int, ...]) -> tuple[list[int], torch.Tensor]:
    """Round the number of keys of each text of a flattened batch up to a multiple of `ROUND_KEYS`.

    A text's last token is repeated as often as needed: tokens of another text could hold NaN.

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
    """Return the states `(1, h, p, d)` of the tokens at positions `(p,)` of a row, from states `(1, h, t, d)`."""
    _, heads, tokens, size = states.shape
    rows = states.transpose(1, 2).reshape(tokens, heads * size)  # no copy: layers put a token's heads side by side
    return rows.index_select(0, positions).view(1, len(positions), heads, size).transpose(1, 2)


@lru_cache(maxsize=1024)
def _build_mask(length: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the mask `(1, 1, 1, width)` of a text's keys: 0 for the first `length` keys, -inf for the others."""
    mask = torch.zeros(1, 1, 1, width, dtype=dtype)
    mask[..., length:] = -torch.inf
    return mask


def enable_unpadded(model: Any, attention: Attention = attend_within_texts, name: str = NAME) -> None:
    """Switch a transformer to an attention function for flattened input, in place.

    The function is also registered with transformers under the name, for the whole process.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, sdpa_mask)
    model.set_attn_implementation(name)


def flatten(features: Features, first_position: int) -> Features:
    """Concatenate the tokens of padded features `(b, t)` into one row `(1, t)` without padding, and return the row.

    The row has position ids and the bounds of the texts. A dummy text fills it up to a multiple of `ROUND_TOKENS`.

    Args:
        features: padded input with an `attention_mask`, which the result lacks.
        first_position: position id of a text's first token.
    """
    return _add_bounds(*_select_tokens(features), first_position)


def _select_tokens(features: Features) -> tuple[Features, NDArray[np.int64]]:
    """Return padded features as a row of tokens `(t,)` without mask, and the number of tokens of each text `(b,)`."""
    mask = features["attention_mask"].bool()
    row = {
        name: value[mask] if isinstance(value, torch.Tensor) and value.shape == mask.shape else value
        for name, value in features.items()
        if name != "attention_mask"
    }
    return row, mask.sum(1).numpy().astype(np.int64)


def _add_bounds(row: Features, lengths: NDArray[np.int64], first_position: int) -> Features:
    """Return a row of tokens as a model's input `(1, t)`, with position ids and the bounds of the texts.

    A dummy text fills the row up to a multiple of `ROUND_TOKENS`.
    """
    # A multiple of ROUND_TOKENS, so that few shapes need a kernel of oneDNN.
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
    """Divide padded texts, in their order, into batches of at most `budget` tokens, each with its tokens in one row.

    Args:
        features: padded input with an `attention_mask`.
        budget: maximum tokens of a batch's texts.
        first_position: position id of a text's first token.
    """
    return split_row(*_select_tokens(features), budget, first_position)


def split_row(row: Features, lengths: NDArray[np.int64], budget: int, first_position: int) -> Iterator[Batch]:
    """Divide texts whose tokens are in one row into batches of at most `budget` tokens, and yield the batches in order.

    The tokens of a batch are in one row. A text with more tokens is a batch of its own. Tokens that fill a batch up to
    a multiple of `ROUND_TOKENS` are not counted.

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

    The texts of the first input come first. The result also has position ids and the bounds of the texts.
    """
    widest = max(features["attention_mask"].shape[1] for features in feature_columns)
    columns = {
        name: torch.cat([pad(features[name], (0, widest - features[name].shape[1])) for features in feature_columns])
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
    """Switch a model on a CPU to flattened input, in place, if its vectors of `probes` stay the same.

    The vectors are compared with the vectors of each text alone, which no padding can change. A model that is not
    switched keeps its attention: some models have attention masks of their own.

    Args:
        model: the `SentenceTransformer`, in float32.
        probes: texts whose vectors are compared.
        attention: attention function for flattened input.
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
    except Exception:  # models fail on input they do not expect with whatever error comes first
        pass

    transformer.auto_model.set_attn_implementation(before)
    return None
