"""Counting tokens without loading a model: its tokenizer file is enough."""

from collections.abc import Callable, Sequence
from pathlib import Path

from training.encoder.encoder import locate
from training.encoder.spec import EncoderSpec

TOKENIZER = "tokenizer.json"


def token_counter(spec: EncoderSpec) -> Callable[[Sequence[str]], list[int]] | None:
    """What counts the tokens of texts, special ones and any cutting left out; None where there is no tokenizer file."""
    path = tokenizer_file(spec)
    if path is None:
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(texts: Sequence[str]) -> list[int]:
        return [len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]

    return count


def tokenizer_file(spec: EncoderSpec) -> Path | None:
    """The file in the model's folder, or in the hub's cache; nothing is fetched."""
    place = Path(locate(spec.model)).expanduser()
    if place.is_dir():
        return next(iter(sorted(place.rglob(TOKENIZER))), None)
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(spec.model, TOKENIZER, revision=spec.revision)
    return Path(found) if isinstance(found, str) else None
