"""Cutting long texts before they are tokenized, so that a text costs what a model reads of it, not what it is long.

A tokenizer spends about 0.5 µs and 70 bytes on each character, or four times that where tokens are short, and throws
away all but the first few hundred tokens. What it would keep is found from a part of the text that grows:

    text  ├── part ──┤ twice as long ├──────── twice as long again ────────┤ …
          └ tokens read ┘└ at least a word, and SAFE_CHARACTERS, before the cut

A word of a megabyte may be a single token, and a megabyte of spaces none. The middle of such a stretch is left out.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from training.encoder.spec import Side
from training.errors import TooLongError

CHARACTERS_PER_TOKEN = 8
"""Of the first part, for each token wanted. English has 4 to 5, so that the first part mostly is enough."""

SAFE_CHARACTERS = 128
"""Beside a cut, whose tokens are not relied on: it may run through an added token such as `<mask>`."""

STRETCH = 512
"""Characters from which the middle of a stretch that gave one token or none is left out. No vocabulary has a token as
long; WordPiece takes words from 100 characters on for unknown."""

STRETCH_ALPHABET = 256
"""Different characters up to which a stretch is followed beyond the part that was tokenized."""

MAX_EXAMINED = 1_000_000
"""Characters that are tokenized in search of a cut, about half a second. Past that the text is cut where it is: only
texts made for it get there."""

PERIOD = 2 * 3 * 5 * 7
"""Parts of a text differ in length by a multiple of this and one. From the left, a tokenizer that takes three digits
or four equal letters together would else give two parts the same tokens, in step with each other but not the text."""

OTHER_CUTS = 8
"""Cuts beside one in a text without spaces whose tokens must be the same."""

DENSE_CHARACTERS = 32
"""For each token wanted: a part of a text, and..."""

DENSE_WORDS = 2
"""...words in it, with which it is enough whatever the tokenizer. Tokens are at most words, but for rare vocabularies
with frequent pairs of them."""

STATIC_CHARACTERS = 4_000_000
"""Read of a text by models without a limit, which look each token up: about a million tokens."""

PIECE = 50_000
"""Characters that are tokenized at once for such a model..."""

LONGEST_PIECE = 1_000_000
"""...or up to so many, where no space comes."""

WORD = re.compile(r"\w+")
SPACE = re.compile(r"(?<=\S)\s(?=\S)")


@dataclass(frozen=True)
class Cut:
    """A text or the part of it that a model reads.

    Attributes:
        text: gives the tokens that are read of the whole text.
        whole: whether it gives all tokens of the whole text.
    """

    text: str
    whole: bool


@dataclass(frozen=True)
class Reading:
    """What a tokenizer makes of a part of a text.

    Attributes:
        ids: of its tokens.
        spans: where each token begins and ends; None where the tokenizer does not say.
        words: the number of the word that each token is of; likewise.
    """

    ids: list[int]
    spans: list[tuple[int, int]] | None
    words: list[int | None]


class TextCutter:
    """Cuts texts to what a model reads, such that its vectors stay the same; not thread-safe, like its tokenizer.

    Where a tokenizer takes unknown letters or white space together beyond any vocabulary's longest token, the cut
    looks as far as that goes. Two texts may be read otherwise than whole: those with more than `MAX_EXAMINED`
    characters that give too few tokens and are no plain repetition, and words of that length cut from the left.
    """

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        """Prepare for a model.

        Args:
            tokenizer: of transformers.
            max_length: tokens the model reads, special ones included.
        """
        self.tokenizer = tokenizer
        self.wanted = min(max_length, MAX_EXAMINED) + 1  # so that a text that was cut is known to be too long
        self.part = CHARACTERS_PER_TOKEN * self.wanted + SAFE_CHARACTERS
        self.most = max(MAX_EXAMINED, 4 * self.part)
        # A cut in a word of WordPiece may change all of it; other models take a word from left to right.
        model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
        self.only_whole_words = type(model).__name__ == "WordPiece"

    def cut(self, text: str, prompt: str = "", side: Side = "right") -> Cut:
        """Return the part of a text that a model reads behind a prompt.

        Args:
            text: any; one of less than about twice what is read comes back as it is.
            prompt: is put before the text.
            side: the end that is cut off.
        """
        if len(text) <= 2 * self.part:
            return Cut(text, whole=True)
        before = prompt if side == "right" else ""  # far from what is kept of the right end
        kept, rest, examined = "", Rest(text, side), 0
        earlier: list[int] = []
        while True:
            grown = max(len(kept), self.part) // PERIOD * PERIOD + PERIOD + 1
            if examined and examined + len(kept) + grown > self.most:
                return Cut(kept, whole=False)
            kept = rest.join(kept, grown)
            if not rest.left:
                return Cut(kept, whole=True)
            examined += len(kept)
            found = self.read(before + kept)
            if self.enough(found, len(before + kept), side) or self.agrees(found, earlier, before + kept, side):
                return Cut(kept, whole=False)
            earlier = found.ids
            kept = self.leave_out(kept, before, found, rest)

    def read(self, text: str) -> Reading:
        """Tokenize a part of a text, without special tokens."""
        found = self.tokenizer([text], add_special_tokens=False, truncation=False, verbose=False)
        if not found.encodings:  # a tokenizer written in Python
            return Reading(found["input_ids"][0], None, [])
        encoding = found.encodings[0]
        return Reading(encoding.ids, encoding.offsets, encoding.word_ids)

    def enough(self, found: Reading, length: int, side: Side) -> bool:
        """Return whether a part has the wanted tokens in words that end well before the cut."""
        if found.spans is None or len(found.ids) <= self.wanted:
            return False
        places = zip(found.words, found.spans, strict=True)
        if side == "right":
            last = found.words[-1]
            safe = sum(word != last and end <= length - SAFE_CHARACTERS for word, (_, end) in places)
        else:
            first = found.words[0]
            safe = self.only_whole_words * sum(
                word != first and start >= SAFE_CHARACTERS for word, (start, _) in places
            )
        return safe >= self.wanted

    def agrees(self, found: Reading, earlier: list[int], part: str, side: Side) -> bool:
        """Return whether a part gives the wanted tokens wherever it is cut: more of the text would not change them.

        This is for text without spaces. It is compared with a part half as long, and with itself a few characters
        shorter: if the best way to each of the last places begins alike, so does the best way to any further place.
        """
        read = slice(0, self.wanted) if side == "right" else slice(-self.wanted, None)
        if (
            self.only_whole_words
            or min(len(earlier), len(found.ids)) <= self.wanted
            or earlier[read] != found.ids[read]
        ):
            return False
        shorter = [part[:-count] if side == "right" else part[count:] for count in range(1, OTHER_CUTS + 1)]
        others = self.tokenizer(shorter, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
        return all(ids[read] == found.ids[read] for ids in others)

    def leave_out(self, kept: str, before: str, found: Reading, rest: "Rest") -> str:
        """Return a part without the middles of long stretches; what follows of one at the cut is skipped.

        A part that would not give the same tokens stays what it is.
        """
        whole = before + kept
        stretches = [] if found.spans is None else list(long_stretches(found.spans, len(before), len(whole)))
        if not stretches:
            return kept
        parts, end = [], 0
        for start, stop in stretches:
            parts.append(whole[end : start + STRETCH // 2])
            end = stop - STRETCH // 2
        shorter = "".join([*parts, whole[end:]])
        if self.read(shorter).ids != found.ids:
            return kept
        for start, stop in stretches:
            if (stop == len(whole)) if rest.side == "right" else (start == 0):
                rest.skip(set(whole[start:stop]))
        return shorter[len(before) :]


class Rest:
    """What of a text has not been looked at yet, towards one side.

    Attributes:
        left: its characters.
    """

    def __init__(self, text: str, side: Side) -> None:
        self.text = text
        self.side = side
        self.left = len(text)

    def peek(self, count: int) -> str:
        """Return the next characters."""
        start = len(self.text) - self.left if self.side == "right" else max(0, self.left - count)
        return self.text[start : start + min(count, self.left)]

    def join(self, kept: str, count: int) -> str:
        """Return a part with the next characters, which are taken."""
        more = self.peek(count)
        self.left -= len(more)
        return kept + more if self.side == "right" else more + kept

    def skip(self, characters: set[str]) -> None:
        """Leave out what follows of some characters, if they are few."""
        if len(characters) > STRETCH_ALPHABET:
            return
        some = "".join(characters)
        while more := self.peek(MAX_EXAMINED):
            other = more.lstrip(some) if self.side == "right" else more.rstrip(some)
            self.left -= len(more) - len(other)
            if other:
                return


def long_stretches(spans: Sequence[tuple[int, int]], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of stretches of a text of more than `STRETCH` characters that gave one token or none."""
    for first, last in [*spans, (stop, stop)]:
        begin = max(first, start)
        if begin - start > STRETCH:
            yield start, begin
        if last - begin > STRETCH:
            yield begin, last
        start = max(start, last)


def cut_by_words(text: str, max_length: int, side: Side = "right") -> str | None:
    """Return the part of a long text that surely is all a model reads, by its words; None if that cannot be told.

    This needs no tokenizer, so that most of a long text need not reach the process that has one.
    """
    size = DENSE_CHARACTERS * (max_length + 1)
    if len(text) <= size:
        return None
    part = text[:size] if side == "right" else text[-size:]
    return part if len(WORD.findall(part)) > DENSE_WORDS * (max_length + 1) else None


def split_at_spaces(text: str) -> Iterator[str]:
    """Yield a text's pieces of some `PIECE` characters, each tokenized alike alone: they begin with its spaces."""
    start = 0
    while len(text) - start > PIECE:
        space = SPACE.search(text, start + PIECE, start + LONGEST_PIECE)
        stop = space.start() if space else start + LONGEST_PIECE
        yield text[start:stop]
        start = stop
    if start < len(text) or not text:
        yield text[start:]


def too_long(place: int, text: str, encoder: str, max_length: int) -> TooLongError:
    """Build the error for a text that is not even tokenized whole."""
    return TooLongError(
        f"input {place} is {len(text)} characters long, of which {encoder} reads {max_length} tokens; "
        "shorten it or allow truncation"
    )
