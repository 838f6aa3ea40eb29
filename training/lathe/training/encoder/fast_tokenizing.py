"""Tokenizing by the Rust tokenizer that a model's tokenizer wraps, whose tokens become tensors directly.

transformers pads all texts in lists of Python integers, flattens these lists to look for None, and converts them: 85 %
of the time to tokenize 4,000 docstrings, and on a GPU longer than the model itself takes. Of the rest, most goes when
words that come again are looked up.
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
"""Texts on which both ways must agree: short, empty, of several scripts, and too long."""

MAX_WORDS = 1 << 16
"""Maximum number of words whose tokens are kept; together they take about 15 MB."""

LONGEST_WORD = 64
"""Maximum number of characters of a word whose tokens are kept."""

PER_TOKEN = frozenset({"input_ids", "attention_mask", "token_type_ids"})
"""Tensors of the model's input that are known here."""


class WordTokenizer:
    """Tokenizer that asks a Rust tokenizer for the tokens of each word once, and stores them for later texts.

    On texts of 32 tokens it takes an eighth of the Rust tokenizer's time. It is right for tokenizers whose `of_words`
    is true.

    Args:
        rust: the Rust tokenizer; its truncation and padding are switched off.

    Attributes:
        before: special tokens before the tokens of a text.
        after: special tokens after the tokens of a text.
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
    def of_words(rust: Any) -> bool:
        """Return whether a Rust tokenizer is BERT's, which treats what stands between two spaces alone.

        Its normalizer changes characters one by one, and its words end at white space. Only an added token with white
        space within could join two words.
        """
        parts = [type(part).__name__ for part in (rust.normalizer, rust.pre_tokenizer, rust.model)]
        added = rust.get_added_tokens_decoder().values()
        return parts == ["BertNormalizer", "BertPreTokenizer", "WordPiece"] and all(
            token.content.split() == [token.content] for token in added
        )

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text in full, without special tokens."""
        self.rust.no_truncation()
        self.rust.no_padding()
        # Other white space stays within a word: control characters that Python splits at are nothing to BERT.
        rows = [text.replace("\t", " ").replace("\n", " ").replace("\r", " ").split(" ") for text in texts]
        words = set().union(*rows)
        if len(self.tokens) + len(unknown := words.difference(self.tokens)) > MAX_WORDS:
            self.tokens, unknown = {}, words

        asked = list(unknown)
        encodings = self.rust.encode_batch_fast(asked, add_special_tokens=False) if asked else []
        self.tokens.update(zip(asked, [encoding.ids for encoding in encodings], strict=True))
        ids = [list(chain.from_iterable(map(self.tokens.__getitem__, row))) for row in rows]
        for word in asked:
            if len(word) > LONGEST_WORD:
                del self.tokens[word]
        return ids


class _FastTokenizer:
    """Tokenizer of a `SentenceTransformer` that gives the input of `preprocess`, by calls to the Rust tokenizer.

    Args:
        model: the `SentenceTransformer`, with a tokenizer that wraps one of the library tokenizers.

    Attributes:
        settings: what `preprocess` returns besides the tensors of the tokens, by prompt.
        words: tokenizer of single words; None if the Rust tokenizer has to see whole texts.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.tokenizer = model.tokenizer
        self.rust = model.tokenizer.backend_tokenizer
        self.settings: dict[str | None, Features] = {}
        self.words = WordTokenizer(self.rust) if WordTokenizer.of_words(self.rust) else None

    def tokenize_in_row(self, texts: Sequence[str], prompt: str | None) -> tuple[Features, NDArray[np.int64]]:
        """Tokenize texts, and return the model's input with the tokens of all texts in one row.

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
        limit, side = self.tokenizer.model_max_length, self.tokenizer.truncation_side
        if (words := self.words) is not None:
            room = limit - len(words.before) - len(words.after) if truncate else sys.maxsize
            rows = words.tokenize(texts)
            kept = (ids[:room] if side == "right" else ids[max(0, len(ids) - room) :] for ids in rows)
            return [words.before + ids + words.after for ids in kept]

        self.rust.no_padding()
        if truncate and limit < 1 << 20:
            self.rust.enable_truncation(limit, direction=side)
        else:
            self.rust.no_truncation()
        return [encoding.ids for encoding in self.rust.encode_batch_fast(list(texts))]

    def tokenize(self, texts: Sequence[str], prompt: str | None) -> Features:
        """Tokenize texts with a prompt before each, and return the padded input that `preprocess` would give.

        Args:
            texts: at least one text.
            prompt: text put before each, or None.
        """
        row, lengths = self.tokenize_in_row(texts, prompt)
        settings, wrapper = self._read_settings(prompt), self.tokenizer

        # The tokens of all texts in a row fill the places of a matrix (texts, longest text) that are not padding.
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
        """Return the number of tokens of each text, special tokens included, without truncation."""
        return [len(ids) for ids in self._tokenize(texts, truncate=False)]

    def _read_settings(self, prompt: str | None) -> Features:
        """Return the input that `preprocess` gives for a short text with this prompt, whose keys hold for any text."""
        if prompt not in self.settings:
            self.settings[prompt] = self.model.preprocess(["."], prompt=prompt)
        return self.settings[prompt]

    def agrees(self, prompt: str | None) -> bool:
        """Return whether this tokenizer gives the same input as `model.preprocess` on the probe texts."""
        return all(
            _equal_features(self.tokenize(texts, prompt), self.model.preprocess(texts, prompt=prompt))
            for texts in (PROBES, *([probe] for probe in PROBES))
        )


def open_fast_tokenizer(model: Any) -> _FastTokenizer | None:
    """Return a tokenizer that calls the Rust tokenizer of a model directly.

    The result is None if the model has no Rust tokenizer, or the input would differ from the input that `preprocess`
    gives.

    Args:
        model: the `SentenceTransformer`, with the padding side that it will be used with.
    """
    try:
        fast = _FastTokenizer(model)
        tensors = {name for name, value in fast._read_settings(None).items() if isinstance(value, torch.Tensor)}
        # Prompts differ in their texts alone, so that one of them stands for all.
        prompts = [None, *[prompt for prompt in model.prompts.values() if prompt][:1]]
        if tensors <= PER_TOKEN and all(fast.agrees(prompt) for prompt in prompts):
            return fast
    except Exception:  # tokenizers of models' own fail with whatever error comes first
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
