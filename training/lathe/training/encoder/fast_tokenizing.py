"""Fast tokenization by direct calls to the Rust tokenizer that a model's tokenizer wraps.

transformers pads all texts in lists of Python integers, flattens these lists to look for None, and converts them: 85 %
of the time to tokenize 4,000 docstrings, and on a GPU longer than the model itself takes. Here the token ids become
tensors directly. Most of the remaining time is saved by a cache of the tokens of words.
"""

import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lathe.training.encoder.batching import Features

PROBES = [
    "yes",
    "",
    "A lathe turns a workpiece.",
    "東京は日本の首都です。 🙂",
    "naïve  text\twith\nspaces",
    "word " * 3000,
]
"""Texts on which fast tokenization and `model.preprocess` must agree: short, empty, too long, of several scripts."""

MAX_WORDS = 1 << 16
"""Maximum number of words whose tokens are cached; together they take about 15 MB."""

LONGEST_WORD = 64
"""Maximum number of characters of a word whose tokens are cached."""

PER_TOKEN = frozenset({"input_ids", "attention_mask", "token_type_ids"})
"""Tensors of a model's input that the fast tokenizer can build. A model with another tensor is not supported."""


class WordTokenizer:
    """Tokenizer that splits texts into words, and asks a Rust tokenizer only for words that are not cached.

    On texts of 32 tokens it takes an eighth of the Rust tokenizer's time. It gives the same tokens for tokenizers whose
    `splits_at_spaces` is true.

    Args:
        rust: the Rust tokenizer; its truncation and padding are switched off.

    Attributes:
        before: ids of the special tokens before the tokens of a text.
        after: ids of the special tokens after the tokens of a text.
    """

    def __init__(self, rust: Any) -> None:
        self.rust = rust
        self.tokens: dict[str, list[int]] = {}
        rust.no_truncation()
        rust.no_padding()
        ids, text = (rust.encode("yes", add_special_tokens=special).ids for special in (True, False))
        start = ids.index(text[0])
        self.before, self.after = ids[:start], ids[start + len(text) :]

    @staticmethod
    def splits_at_spaces(rust: Any) -> bool:
        """Return whether a Rust tokenizer is BERT's without added tokens that contain spaces.

        Such a tokenizer gives a word between two spaces the same tokens in any text: the normalizer changes characters
        one by one, and words end at white space. Only an added token that contains white space could join two words.
        """
        parts = [type(part).__name__ for part in (rust.normalizer, rust.pre_tokenizer, rust.model)]
        added = rust.get_added_tokens_decoder().values()
        return parts == ["BertNormalizer", "BertPreTokenizer", "WordPiece"] and all(
            token.content.split() == [token.content] for token in added
        )

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text in full, without special tokens, and cache the tokens of new words.

        If the cache would exceed `MAX_WORDS`, it is emptied first. Words longer than `LONGEST_WORD` are not cached.
        """
        self.rust.no_truncation()
        self.rust.no_padding()
        # Other white space stays within a word: BERT ignores control characters at which Python's split() would split.
        rows = [text.replace("\t", " ").replace("\n", " ").replace("\r", " ").split(" ") for text in texts]
        words = set().union(*rows)
        if len(self.tokens) + len(unknown := words.difference(self.tokens)) > MAX_WORDS:
            self.tokens, unknown = {}, words

        new = list(unknown)
        encodings = self.rust.encode_batch_fast(new, add_special_tokens=False) if new else []
        self.tokens.update(zip(new, [encoding.ids for encoding in encodings], strict=True))
        ids = [list(chain.from_iterable(map(self.tokens.__getitem__, row))) for row in rows]
        for word in new:
            if len(word) > LONGEST_WORD:
                del self.tokens[word]
        return ids


class _FastTokenizer:
    """Tokenizer of a `SentenceTransformer` that builds the same input as `preprocess` by calls to the Rust tokenizer.

    Args:
        model: the `SentenceTransformer`, with a tokenizer that wraps one of the library tokenizers.

    Attributes:
        settings: input that `preprocess` returns for a short text, by prompt; entries that are not tensors hold for any
            text.
        words: tokenizer of single words; None if the Rust tokenizer has to see whole texts.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.tokenizer = model.tokenizer
        self.rust = model.tokenizer.backend_tokenizer
        self.settings: dict[str | None, Features] = {}
        self.words = WordTokenizer(self.rust) if WordTokenizer.splits_at_spaces(self.rust) else None

    def tokenize_in_row(self, texts: Sequence[str], prompt: str | None) -> tuple[Features, NDArray[np.int64]]:
        """Tokenize texts, truncated to the model's maximum length, and return the input with all tokens in one row.

        Args:
            texts: at least one text.
            prompt: text put before each, or None.

        Returns:
            The input, with tensors `(t,)` without mask or padding, and the number of tokens of each text `(n,)`.
        """
        settings = self._read_settings(prompt)
        rows = self._tokenize([prompt + text for text in texts] if prompt else texts, truncate=True)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.fromiter(chain.from_iterable(rows), np.int64, lengths.sum())
        tensors = {"input_ids": torch.from_numpy(ids), "token_type_ids": torch.zeros(len(ids), dtype=torch.int64)}
        row = {name: tensors.get(name, value) for name, value in settings.items() if name != "attention_mask"}
        return row, lengths

    def _tokenize(self, texts: Sequence[str], truncate: bool) -> list[list[int]]:
        """Return the token ids of each text with special tokens, cut to the model's maximum length if `truncate`."""
        limit, side = self.tokenizer.model_max_length, self.tokenizer.truncation_side
        if (words := self.words) is not None:
            available = limit - len(words.before) - len(words.after) if truncate else sys.maxsize
            rows = words.tokenize(texts)
            kept = (ids[:available] if side == "right" else ids[max(0, len(ids) - available) :] for ids in rows)
            return [words.before + ids + words.after for ids in kept]

        self.rust.no_padding()
        if truncate and limit < 1 << 20:
            self.rust.enable_truncation(limit, direction=side)
        else:
            self.rust.no_truncation()
        return [encoding.ids for encoding in self.rust.encode_batch_fast(list(texts))]

    def tokenize(self, texts: Sequence[str], prompt: str | None) -> Features:
        """Tokenize texts with a prompt before each text, and return the padded input that `preprocess` would give.

        Args:
            texts: at least one text.
            prompt: text put before each, or None.
        """
        row, lengths = self.tokenize_in_row(texts, prompt)
        settings, wrapper = self._read_settings(prompt), self.tokenizer

        # The tokens of all texts in a row fill the entries of a matrix (texts, longest text) that are not padding.
        positions = np.arange(lengths.max())
        if wrapper.padding_side == "left":
            positions = positions[::-1]
        mask = positions < lengths[:, None]
        ids = np.full(mask.shape, wrapper.pad_token_id, np.int64)
        ids[mask] = row["input_ids"].numpy()

        tensors = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask.astype(np.int64))}
        if "token_type_ids" in settings:
            types = np.where(mask, 0, wrapper.pad_token_type_id)
            tensors["token_type_ids"] = torch.from_numpy(types)
        return {name: tensors.get(name, value) for name, value in settings.items()}

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of each text without truncation, special tokens included."""
        return [len(ids) for ids in self._tokenize(texts, truncate=False)]

    def _read_settings(self, prompt: str | None) -> Features:
        """Return the input that `preprocess` gives for a short text with this prompt, computed once for each prompt.

        Keys, and entries that are not tensors, are the same for any text.
        """
        if prompt not in self.settings:
            self.settings[prompt] = self.model.preprocess(["."], prompt=prompt)
        return self.settings[prompt]

    def agrees(self, prompt: str | None) -> bool:
        """Return whether this tokenizer gives the input of `model.preprocess` on `PROBES`, in a batch and alone."""
        return all(
            _equal_features(self.tokenize(texts, prompt), self.model.preprocess(texts, prompt=prompt))
            for texts in (PROBES, *([probe] for probe in PROBES))
        )


def open_fast_tokenizer(model: Any) -> _FastTokenizer | None:
    """Build a tokenizer that calls the Rust tokenizer of a model directly, or return None if that is not possible.

    The result is None if the model has no Rust tokenizer, has other tensors than `PER_TOKEN`, or the input for the
    probe texts would differ from the input that `preprocess` gives.

    Args:
        model: the `SentenceTransformer`, with the padding side that it will be used with.
    """
    try:
        fast = _FastTokenizer(model)
        tensors = {name for name, value in fast._read_settings(None).items() if isinstance(value, torch.Tensor)}
        # Prompts differ only in their texts, so one prompt is enough for the check.
        prompts = [None, *[prompt for prompt in model.prompts.values() if prompt][:1]]
        if tensors <= PER_TOKEN and all(fast.agrees(prompt) for prompt in prompts):
            return fast
    except Exception:  # custom tokenizers fail with errors of any class
        pass
    return None


def _equal_features(features: Features, expected: Features) -> bool:
    if list(features) != list(expected):
        return False
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            tensor = features[name]
            if not (isinstance(tensor, torch.Tensor) and tensor.dtype == value.dtype and torch.equal(tensor, value)):
                return False
        elif features[name] != value:
            return False
    return True
