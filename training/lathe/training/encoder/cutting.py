"""Truncation of long texts before tokenization, so that the cost depends on what a model reads, not on their length.

A tokenizer spends about 0.5 µs and 70 bytes on each character, or four times that where tokens are short, and discards
all but the first few hundred tokens. The text to keep is found by tokenizing a part of the text that grows:

    text  ├── part ──┤ twice as long ├──────── twice as long again ────────┤ …
          └ tokens read ┘└ at least a word, and SAFE_CHARACTERS, before the cut

A word of a megabyte may be a single token, and a megabyte of spaces none. The middle of such a stretch is removed.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lathe.training.encoder.spec import Side
from lathe.training.errors import TooLongError

CHARACTERS_PER_TOKEN = 8
"""Characters of the first part for each token that the model reads. English has 4 to 5 characters per token, so the
first part is usually enough."""

SAFE_CHARACTERS = 128
"""Number of characters next to a cut whose tokens are not counted, because the cut may split an added token such as
`<mask>`."""

STRETCH = 512
"""Length in characters above which the middle of a stretch that gave one token or none is removed. No vocabulary has a
token of this length; WordPiece treats words of 100 or more characters as unknown."""

STRETCH_ALPHABET = 256
"""Maximum number of different characters of a stretch that is skipped beyond the part that was tokenized."""

MAX_EXAMINED = 1_000_000
"""Maximum characters that are tokenized in search of a cut, about half a second. Beyond them the text is cut where the
search stands; only adversarial texts get there."""

PERIOD = 2 * 3 * 5 * 7
"""Parts of a text have lengths one above a multiple of this number. A tokenizer that groups three digits or four equal
letters could otherwise, cut from the left, give two parts the same tokens although their groups are out of step with
the text."""

OTHER_CUTS = 8
"""Number of other positions of the cut that must give the same tokens, in a text without spaces."""

DENSE_CHARACTERS = 32
"""Characters, for each token that the model reads, of the part that `cut_by_words` keeps."""

DENSE_WORDS = 2
"""Words that the part of `cut_by_words` must have for each token that the model reads, to be enough for any tokenizer.
A word has at least one token, except in rare vocabularies with tokens for frequent pairs of words."""

STATIC_CHARACTERS = 4_000_000
"""Maximum characters of a text for static models without a token limit: about a million tokens."""

PIECE = 50_000
"""Minimum characters of a piece of text that is tokenized at once for a static model without a token limit."""

LONGEST_PIECE = 1_000_000
"""Maximum characters of a piece of text, if no space comes before."""

WORD = re.compile(r"\w+")
"""Pattern of a word."""

SPACE = re.compile(r"(?<=\S)\s(?=\S)")
"""Pattern of a single white-space character between two others."""


class Cut(NamedTuple):
    """Part at the beginning or end of a text that holds all tokens that a model reads.

    Attributes:
        text: a text with the same tokens as the original, up to the number that the model reads.
        whole: whether no token of the original is missing.
    """

    text: str
    whole: bool


@dataclass(frozen=True)
class _Tokens:
    """Tokens of a part of a text.

    Attributes:
        ids: token ids.
        spans: start and end offset of each token, in characters; None if the tokenizer does not report them.
        words: index of each token's word; empty if the tokenizer does not report it.
    """

    ids: list[int]
    spans: list[tuple[int, int]] | None
    words: list[int | None]


class TextCutter:
    """Truncation of long texts before tokenization, to a part that gives the same tokens as far as the model reads.

    Not thread-safe, like the tokenizer.

    If a tokenizer merges unknown letters or white space beyond the longest token of any vocabulary, the search for a
    cut goes as far as the merged characters do. Two kinds of text may give other vectors than the whole text: texts
    with more than `MAX_EXAMINED` characters that give too few tokens and do not merely repeat, and words of that length
    cut from the left.

    Attributes:
        tokenizer: the tokenizer.
        wanted: minimum number of tokens of a part: one more than the model reads.
        part: number of characters of the first part.
        most: maximum number of characters that are tokenized for a text.
        only_whole_words: whether the tokenizer is WordPiece, in which a cut may change all tokens of a word.
    """

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        """Store the tokenizer, and compute how many characters of a long text are tokenized at a time.

        Args:
            tokenizer: a transformers tokenizer.
            max_length: tokens the model reads, special tokens included.
        """
        self.tokenizer = tokenizer
        # One token more than the model reads, so that a text that was cut is known to be too long.
        self.wanted = min(max_length, MAX_EXAMINED) + 1
        self.part = CHARACTERS_PER_TOKEN * self.wanted + SAFE_CHARACTERS
        self.most = max(MAX_EXAMINED, 4 * self.part)
        # A cut in a word of WordPiece may change all of it; other models take a word from left to right.
        model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
        self.only_whole_words = type(model).__name__ == "WordPiece"

    def cut(self, text: str, prompt: str = "", side: Side = "right") -> Cut:
        """Cut a long text to a part with all tokens that the model reads behind a prompt. Short texts stay whole.

        A text that is shorter than about twice what the model reads is returned whole and not tokenized. Longer texts
        are tokenized in parts that grow, up to `MAX_EXAMINED` characters.

        Args:
            text: any text.
            prompt: text that is put before `text`; it is not part of the result.
            side: the end of the text that is cut off.

        Returns:
            The part, and whether it is the whole text.
        """
        if len(text) <= 2 * self.part:
            return Cut(text, whole=True)

        before = prompt if side == "right" else ""  # cut from the left, the part does not touch the prompt
        kept, unread, examined = "", _UnreadText(text, side), 0
        earlier: list[int] = []

        while True:
            # Lengths one above a multiple of PERIOD: see there why the parts must differ in phase.
            grown = max(len(kept), self.part) // PERIOD * PERIOD + PERIOD + 1
            if examined and examined + len(kept) + grown > self.most:
                return Cut(kept, whole=False)

            kept = unread.join(kept, grown)
            if not unread.left:
                return Cut(kept, whole=True)

            examined += len(kept)
            tokens = self._tokenize(before + kept)
            if self._has_enough_tokens(tokens, len(before + kept), side) or self._tokens_are_stable(
                tokens, earlier, before + kept, side
            ):
                return Cut(kept, whole=False)

            earlier = tokens.ids
            kept = self._remove_long_stretches(kept, before, tokens, unread)

    def _tokenize(self, text: str) -> _Tokens:
        encoded = self.tokenizer([text], add_special_tokens=False, truncation=False, verbose=False)
        if not encoded.encodings:  # a tokenizer written in Python
            return _Tokens(encoded["input_ids"][0], None, [])
        encoding = encoded.encodings[0]
        return _Tokens(encoding.ids, encoding.offsets, encoding.word_ids)

    def _has_enough_tokens(self, tokens: _Tokens, length: int, side: Side) -> bool:
        """Return whether a part of a text has more tokens than the model reads, in any case. False without offsets.

        Only words that end `SAFE_CHARACTERS` or more before the cut are counted, since the cut may change the other
        words. The result is False if the tokenizer reports no offsets. It is also False for a text cut from the left,
        unless the tokenizer is WordPiece.

        Args:
            tokens: tokens of the part.
            length: characters of the part, with the prompt.
            side: the end of the text that is cut off.
        """
        if tokens.spans is None or len(tokens.ids) <= self.wanted:
            return False

        offsets = zip(tokens.words, tokens.spans, strict=True)
        if side == "right":
            last = tokens.words[-1]
            safe = sum(word != last and end <= length - SAFE_CHARACTERS for word, (_, end) in offsets)
        else:
            first = tokens.words[0]
            safe = self.only_whole_words * sum(
                word != first and start >= SAFE_CHARACTERS for word, (start, _) in offsets
            )

        return safe >= self.wanted

    def _tokens_are_stable(self, tokens: _Tokens, earlier: list[int], part: str, side: Side) -> bool:
        """Return whether the tokens that the model reads stay the same if the part is cut elsewhere. WordPiece: False.

        False for WordPiece. The tokens of the part are compared with the tokens of the part half as long, and of the
        part cut 1 to `OTHER_CUTS` characters earlier. The result is False if one of these has too few tokens. If the
        best segmentations up to each of the last positions begin alike, so does the best segmentation up to any later
        position.

        Args:
            tokens: tokens of the part.
            earlier: token ids of the part half as long; empty if there was none.
            part: the part, with the prompt.
            side: the end of the text that is cut off.
        """
        read = slice(0, self.wanted) if side == "right" else slice(-self.wanted, None)
        if (
            self.only_whole_words
            or min(len(earlier), len(tokens.ids)) <= self.wanted
            or earlier[read] != tokens.ids[read]
        ):
            return False

        shorter = [part[:-count] if side == "right" else part[count:] for count in range(1, OTHER_CUTS + 1)]
        other_ids = self.tokenizer(shorter, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
        return all(ids[read] == tokens.ids[read] for ids in other_ids)

    def _remove_long_stretches(self, kept: str, before: str, tokens: _Tokens, unread: "_UnreadText") -> str:
        """Remove the middles of long stretches with at most one token, unless tokens change, and return the part.

        If the removal changes the tokens, the part is returned unchanged. If a stretch reaches the cut, the same
        characters that follow in `unread` are skipped, in place.

        Args:
            kept: the part so far.
            before: the prompt before the part, or ''.
            tokens: tokens of the prompt and the part.
            unread: characters not examined yet, changed in place.
        """
        text = before + kept
        stretches = [] if tokens.spans is None else list(_find_long_stretches(tokens.spans, len(before), len(text)))
        if not stretches:
            return kept

        parts, end = [], 0
        for start, stop in stretches:
            parts.append(text[end : start + STRETCH // 2])
            end = stop - STRETCH // 2

        shorter = "".join([*parts, text[end:]])
        if self._tokenize(shorter).ids != tokens.ids:
            return kept

        for start, stop in stretches:
            if (stop == len(text)) if unread.side == "right" else (start == 0):
                unread.skip(set(text[start:stop]))

        return shorter[len(before) :]


class _UnreadText:
    """Characters of a text that have not been examined yet, consumed from its beginning or its end.

    Attributes:
        left: number of these characters.
    """

    def __init__(self, text: str, side: Side) -> None:
        self.text = text
        self.side = side
        self.left = len(text)

    def _peek(self, count: int) -> str:
        start = len(self.text) - self.left if self.side == "right" else max(0, self.left - count)
        return self.text[start : start + min(count, self.left)]

    def join(self, kept: str, count: int) -> str:
        """Consume up to `count` of the next unread characters, and return `kept` joined with them at the cut."""
        characters = self._peek(count)
        self.left -= len(characters)
        return kept + characters if self.side == "right" else characters + kept

    def skip(self, characters: set[str]) -> None:
        """Consume the next unread characters of the given set, unless the set has more than `STRETCH_ALPHABET`."""
        if len(characters) > STRETCH_ALPHABET:
            return

        stretch = "".join(characters)
        while upcoming := self._peek(MAX_EXAMINED):
            beyond = upcoming.lstrip(stretch) if self.side == "right" else upcoming.rstrip(stretch)
            self.left -= len(upcoming) - len(beyond)
            if beyond:
                return


def _find_long_stretches(spans: Sequence[tuple[int, int]], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each stretch of more than `STRETCH` characters that has one token or none.

    Args:
        spans: character offsets of the tokens.
        start: offset at which the search begins.
        stop: end of the text.
    """
    for begins, ends in [*spans, (stop, stop)]:
        begin = max(begins, start)
        if begin - start > STRETCH:
            yield start, begin
        if ends - begin > STRETCH:
            yield begin, ends
        start = max(start, ends)


def cut_by_words(text: str, max_length: int, side: Side = "right") -> str | None:
    """Cut a long text to a part that surely holds all tokens that a model reads, or return None to leave it uncut.

    The words of the part are counted instead of tokens, so most of a long text need not be sent to the process that has
    a tokenizer. The part has `DENSE_CHARACTERS` characters for each token. The result is None if the text is not longer
    than that, or the part has too few words.
    """
    size = DENSE_CHARACTERS * (max_length + 1)
    if len(text) <= size:
        return None
    part = text[:size] if side == "right" else text[-size:]
    return part if len(WORD.findall(part)) > DENSE_WORDS * (max_length + 1) else None


def split_at_spaces(text: str) -> Iterator[str]:
    """Split a long text before spaces, and yield pieces that have the same tokens alone as in the text.

    A piece has at least `PIECE` characters, except the last. A stretch of `LONGEST_PIECE` characters without a space is
    cut within a word. An empty text is one empty piece.
    """
    start = 0
    while len(text) - start > PIECE:
        space = SPACE.search(text, start + PIECE, start + LONGEST_PIECE)
        stop = space.start() if space else start + LONGEST_PIECE
        yield text[start:stop]
        start = stop

    if start < len(text) or not text:
        yield text[start:]


def build_too_long_error(position: int, text: str, encoder: str, max_length: int) -> TooLongError:
    """Build the error for a text that was cut before tokenization. The message tells its length in characters."""
    return TooLongError(
        f"input {position} is {len(text)} characters long, more than the {max_length} tokens that {encoder} reads; "
        "shorten it or allow truncation"
    )
