"""Counting tokens without loading a model: its tokenizer file is enough."""

from collections.abc import Callable, Sequence
from pathlib import Path

from lathe.training.encoder.loading import locate_model
from lathe.training.encoder.spec import EncoderSpec

TOKENIZER = "tokenizer.json"
"""Name of the tokenizer file in a Hugging Face model folder."""


def find_token_counter(spec: EncoderSpec) -> Callable[[Sequence[str]], list[int]] | None:
    """Return a function that counts the tokens of texts, or None if the tokenizer file is not on this machine.

    Special tokens are not counted, and texts are neither truncated nor padded.
    """
    path = _find_tokenizer_file(spec)
    if path is None:
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, without special tokens."""
        return [len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]

    return count


def _find_tokenizer_file(spec: EncoderSpec) -> Path | None:
    """Return the path of `tokenizer.json` in the model's folder or the Hugging Face cache, or None.

    Download nothing. If the folder has several, the first in sorted order is returned.
    """
    place = Path(locate_model(spec.model)).expanduser()
    if place.is_dir():
        return next(iter(sorted(place.rglob(TOKENIZER))), None)
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(spec.model, TOKENIZER, revision=spec.revision)
    return Path(found) if isinstance(found, str) else None
