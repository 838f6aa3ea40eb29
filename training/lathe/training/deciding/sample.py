"""Vectors that the advice is measured on: rows to fit on, held-out rows, and the halves of their texts.

Texts on which the encoder fails are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.errors import EncoderError, UpstreamError
from lathe.training.measures import TextHalves, compute_script_shares, cut_in_two
from lathe.training.sources.row_sample import RowSample
from lathe.transforms.progress import Progress
from lathe.transforms.vectors import FloatArray

HELDOUT_SHARE = 0.2
"""Share of the rows that are held out in a large sample."""
SMALL_HELDOUT = 1000
"""Number of held-out rows up to which half of a small sample is held out: measuring needs more rows than fitting one
direction."""
MAX_HELDOUT = 4000
"""Maximum number of held-out rows."""
MIN_HALVES = 30
"""Minimum number of texts cut in two; with fewer, the interval of a gain is unreliable."""
SCRIPT_TEXTS = 1000
"""Number of texts whose script is detected."""
BLOCK_TEXTS = 256
"""Number of texts that are encoded between two progress reports."""


@dataclass(frozen=True)
class Sample:
    """Vectors of the sampled rows, split into rows to fit on and held-out rows.

    Attributes:
        row_sample: the sampled rows.
        fit: vectors to fit on, `(n, d)`.
        heldout: vectors to measure on, `(m, d)`.
        cut: number of held-out texts that were cut in two; 0 if split-half retrieval is not measured.
        halves: vectors of the first and second halves of these texts; None for fewer than `MIN_HALVES` texts.
        scripts: share of the texts in each script, largest first; empty for a source of vectors.
        failed: reasons why texts or halves of texts could not be encoded, by text. Failed texts are left out.
    """

    row_sample: RowSample
    fit: FloatArray
    heldout: FloatArray
    cut: int
    halves: TextHalves | None
    scripts: dict[str, float] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def dimensions(self) -> int:
        """Number of dimensions of the vectors."""
        return int(self.fit.shape[1])


def count_heldout(rows: int) -> int:
    """Count the held-out rows of a sample of `rows` rows: a fifth, half of a small sample, at most `MAX_HELDOUT`.

    Half is held out up to `SMALL_HELDOUT` held-out rows.
    """
    return min(max(int(HELDOUT_SHARE * rows), min(SMALL_HELDOUT, rows // 2)), MAX_HELDOUT)


def encode_sample(row_sample: RowSample, encoder: TextEncoder, with_halves: bool, on_progress: Progress) -> Sample:
    """Encode sampled texts, and split the vectors into rows to fit on and held-out rows.

    With `with_halves`, the halves of held-out texts are encoded too. Texts that the encoder fails on are left out and
    listed in `failed`; if it fails on every text, `EncoderError` is raised.
    """
    vectors, failed = encode_leniently(encoder, list_texts_to_encode(row_sample, with_halves), on_progress)
    # Halves of texts can fail where the texts do not, so the sample is built from what was encoded.
    return replace(build_text_sample(row_sample, vectors, with_halves), failed=failed)


def list_texts_to_encode(row_sample: RowSample, with_halves: bool = True) -> list[str]:
    """List the texts whose vectors `build_text_sample` needs.

    These are all sampled texts and, with `with_halves`, both halves of every held-out text that can be cut in two.
    """
    if not with_halves:
        return row_sample.texts
    pairs = [cut for text in row_sample.texts[: count_heldout(len(row_sample))] if (cut := cut_in_two(text))]
    return [*row_sample.texts, *(half for pair in pairs for half in pair)]


def build_text_sample(row_sample: RowSample, vectors: Mapping[str, FloatArray], with_halves: bool = True) -> Sample:
    """Build a sample of texts that have vectors: the first texts are held out, and the others are to fit on.

    The order of sampled rows is random already. With `with_halves`, the sample has the vectors of both halves of
    held-out texts.

    Args:
        row_sample: sampled texts.
        vectors: vectors `(d,)` by text or half of a text; not empty.
        with_halves: whether split-half retrieval will be measured.
    """
    dimensions = len(next(iter(vectors.values())))

    def stack(texts: Sequence[str]) -> FloatArray:
        return np.array([vectors[text] for text in texts], np.float32).reshape(len(texts), dimensions)

    held_out = count_heldout(len(row_sample))
    parts = row_sample.texts[:held_out], row_sample.texts[held_out:]
    heldout, fit = ([text for text in part if text in vectors] for part in parts)
    cuts = [cuts for text in heldout if (cuts := cut_in_two(text))] if with_halves else []
    pairs = [pair for pair in cuts if pair[0] in vectors and pair[1] in vectors]
    first, second = ([pair[side] for pair in pairs] for side in (0, 1))

    return Sample(
        row_sample=replace(row_sample, texts=[*heldout, *fit]),
        fit=stack(fit),
        heldout=stack(heldout),
        cut=len(pairs),
        halves=TextHalves(stack(first), stack(second)) if len(pairs) >= MIN_HALVES else None,
        scripts=compute_script_shares(row_sample.texts[:SCRIPT_TEXTS]),
    )


def build_vector_sample(row_sample: RowSample, vectors: FloatArray) -> Sample:
    """Build a sample of vectors `(n, d)`: the first rows are held out, and the other rows are to fit on.

    The sample has no text halves.
    """
    held_out = count_heldout(len(row_sample))
    return Sample(row_sample, vectors[held_out:], vectors[:held_out], cut=0, halves=None)


def encode_leniently(
    encoder: TextEncoder, texts: Sequence[str], on_progress: Progress
) -> tuple[dict[str, FloatArray], dict[str, str]]:
    """Encode texts, and return vectors and failures by text. Raises if an embeddings API or every text fails.

    If a block raises, its texts are encoded one by one.

    Args:
        encoder: encoder of the texts.
        texts: texts to encode. Repeated texts are encoded once.
        on_progress: called with progress in [0, 1] and a message.

    Returns:
        The vectors `(d,)` by text, and the reasons of failures by text. A vector with NaN or inf is a failure.

    Raises:
        UpstreamError: if an embeddings API fails, because the text is not the cause.
        EncoderError: if the encoder fails on every text.
    """
    vectors: dict[str, FloatArray] = {}
    failed: dict[str, str] = {}

    def encode(block: Sequence[str]) -> None:
        try:
            rows = encoder.encode(block).vectors
        except UpstreamError:
            raise
        except Exception as error:  # models raise anything; which text it was is found by trying each
            if len(block) == 1:
                failed[block[0]] = f"{type(error).__name__}: {error}"
            else:
                for text in block:
                    encode([text])
            return
        for text, row in zip(block, rows, strict=True):
            if np.isfinite(row).all():
                vectors[text] = row
            else:
                failed[text] = "NaN or inf"

    distinct = list(dict.fromkeys(texts))
    for start in range(0, len(distinct), BLOCK_TEXTS):
        on_progress(start / len(distinct), f"{start:,} of {len(distinct):,} texts encoded")
        encode(distinct[start : start + BLOCK_TEXTS])
    if failed and not vectors:
        raise EncoderError(f"{encoder.name} fails on every text: {next(iter(failed.values()))}")
    return vectors, failed
