"""Reference vectors: vectors of texts by the encoder before training, stored on disk, and relations of pairs."""

import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.opening import StoredEncoder
from lathe.training.encoder.spec import StoreSettings
from lathe.training.encoder.text_encoder import NO_PROMPT
from lathe.training.encoder.vector_database import VectorDatabase
from lathe.training.errors import JobError
from lathe.training.finetuning.mixture import Mixture
from lathe.training.settings import Prompts
from lathe.transforms.progress import Progress

ENCODE_TEXTS = 2048
"""Number of texts encoded between two reports of progress."""


class ReferenceVectors:
    """Vectors of texts by one encoder, stored in a database that all jobs with the same folder share.

    Args:
        encoder: the model before training; its own prompts are not used, since the texts already contain theirs.
        root: folder of the database.
    """

    def __init__(self, encoder: Encoder, root: Path) -> None:
        database = VectorDatabase(StoreSettings(root))
        weakref.finalize(self, database.close)
        self.encoder = StoredEncoder(encoder, database)

    def encode(self, texts: Sequence[str], on_progress: Progress) -> None:
        """Encode the texts whose vectors the database lacks, and store the vectors in the database.

        A killed run resumes after its last write.
        """
        distinct = list(dict.fromkeys(texts))
        for start in range(0, len(distinct), ENCODE_TEXTS):
            part = distinct[start : start + ENCODE_TEXTS]
            self.encoder.encode(part, prompt_name=NO_PROMPT)
            done = start + len(part)
            on_progress(done / len(distinct), f"encoding the reference, {done:,} of {len(distinct):,} texts")

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the encoder's vectors of texts, `(n, d)`, stored or computed. A zero or non-finite vector raises.

        Raises:
            JobError: if a vector is zero or not finite.
        """
        vectors = self.encoder.encode(texts, prompt_name=NO_PROMPT).vectors
        lengths = np.linalg.norm(vectors, axis=1)
        broken = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
        if len(broken):
            raise JobError(f"the encoder's vector is zero or not finite for the text {texts[broken[0]]!r:.80}")
        return vectors

    def relations(self, mixture: Mixture, rows: slice | None = None) -> NDArray[np.float32]:
        """Return the relations of pairs, `(n, 2d)`: the anchor's vector followed by the positive's (REZE, Sec. 3.1).

        Args:
            mixture: the pairs.
            rows: slice of the pairs; None for all.

        Raises:
            JobError: if a vector is zero or not finite.
        """
        rows = rows or slice(None)
        return np.hstack([self.vectors(mixture.anchors[rows]), self.vectors(mixture.positives[rows])])


def list_prompt_warnings(encoder: Encoder, prompts: Iterable[Prompts]) -> Iterator[str]:
    """Yield a warning if the encoder has a default prompt, but a source of the job sets no prompt for its anchors."""
    default = encoder.prompt(None)
    if default and any(not source_prompts.anchor for source_prompts in prompts):
        yield f"{encoder.name} has the default prompt {default!r}, which is not used: only the job's prompts are"
