"""Texts with more tokens than the encoder reads, whose ends are not trained on."""

from collections.abc import Iterable, Iterator

from lathe.training.encoder.encoder import Encoder
from lathe.training.finetuning.mixture import Mixture

_BATCH = 1000
"""Number of texts that are tokenized at once."""


def list_truncation_warnings(encoder: Encoder, mixture: Mixture) -> Iterator[str]:
    """Yield a warning for each of anchors, positives and hard negatives of which some texts are truncated.

    Nothing is yielded for a static encoder, which reads texts of any length.
    """
    if encoder.static:
        return
    kinds = {
        "anchors": mixture.anchors,
        "positives": mixture.positives,
        "hard negatives": (text for some in mixture.negatives for text in some),
    }
    for kind, texts in kinds.items():
        distinct = set(texts)
        if long := count_truncated(encoder, distinct):
            yield (
                f"{long:,} of {len(distinct):,} distinct {kind} have more tokens than the {encoder.max_length} that "
                "are read of a text; the rest is cut off"
            )


def count_truncated(encoder: Encoder, texts: Iterable[str]) -> int:
    """Return the number of texts that have more tokens than the encoder reads.

    A text with fewer characters than the encoder reads tokens is not tokenized: a token has at least one character.
    """
    cuts = [encoder.cut(text) for text in texts]
    found = sum(not cut.whole for cut in cuts)
    candidates = [cut.text for cut in cuts if cut.whole and len(cut.text) > encoder.max_length - 2]
    for start in range(0, len(candidates), _BATCH):
        some = candidates[start : start + _BATCH]
        ids = encoder.model.tokenizer(some, truncation=False, verbose=False)["input_ids"]
        found += sum(len(one) > encoder.max_length for one in ids)
    return found
