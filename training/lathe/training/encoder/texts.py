"""Check that texts are Unicode.

Python's strings can hold half of a surrogate pair, which no tokenizer or API reads.
"""

from collections.abc import Sequence

from lathe.training.errors import TextError


def require_unicode(texts: Sequence[str]) -> None:
    """Check that texts hold no lone surrogate (half of a UTF-16 pair), such as `json.loads` makes of a cut emoji.

    Raises:
        TextError: for the first text that does.
    """
    for position, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            code = ord(text[error.start])
            raise TextError(
                f"character {error.start} is \\u{code:04x}, half of a surrogate pair without the other", position
            ) from None
