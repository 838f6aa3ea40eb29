"""Relations of pairs: what the encoder, as it was before training, makes of them, on disk."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from training.encoder.encoder import Encoder
from training.errors import JobError
from training.evaluation.store import VectorStore, text_key
from training.finetuning.mixture import Mixture
from training.finetuning.values import Prompts
from transforms.progress import Progress
from transforms.statistics import Moments
from transforms.vectors import FloatArray

ENCODE_TEXTS = 2048
"""Texts between two writes to the store."""
BLOCK_PAIRS = 16_384


class Reference:
    """The vectors of an encoder's texts, each encoded once, shared by all jobs that use the folder.

    Args:
        encoder: the model as it is before training; its prompts are not put before the texts, which carry their own.
        root: of the stores; each encoder's lies under its fingerprint.
    """

    def __init__(self, encoder: Encoder, root: Path) -> None:
        self.encoder = encoder
        self.store = VectorStore(root / encoder.fingerprint, encoder.dimensions)

    def encode(self, texts: Sequence[str], on_progress: Progress) -> None:
        """Encode what is not in the store yet; a killed run goes on after its last write."""
        self.store.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.store.folder / ".lock"):
            self.store.read()
            wanted = {text_key(text): text for text in texts}
            missing = [(key, text) for key, text in wanted.items() if key not in self.store]
            for start in range(0, len(missing), ENCODE_TEXTS):
                part = missing[start : start + ENCODE_TEXTS]
                vectors = self.encoder.encode([text for _, text in part], plain=True).vectors
                self.store.add([key for key, _ in part], vectors)
                done = start + len(part)
                on_progress(done / len(missing), f"encoding the reference, {done:,} of {len(missing):,} texts")

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors `(n, d)` of texts that were encoded.

        Raises:
            JobError: for a vector that is not finite or zero: no relation can be made of it.
        """
        found = self.store.get([text_key(text) for text in texts])
        lengths = np.linalg.norm(found, axis=1)
        broken = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
        if len(broken):
            raise JobError(f"the encoder makes no direction of the text {texts[broken[0]]!r:.80}")
        return found

    def relations(self, mixture: Mixture, rows: slice | None = None) -> NDArray[np.float32]:
        """Relations [a; p] `(n, 2d)` of pairs that were encoded (Section 3.1 of the REZE paper)."""
        rows = rows or slice(None)
        return np.hstack([self.vectors(mixture.anchors[rows]), self.vectors(mixture.positives[rows])])


def unprompted(encoder: Encoder, prompts: Iterable[Prompts]) -> Iterator[str]:
    """Whether the encoder, when it serves, puts something before texts that nothing stands before here."""
    default = encoder.prompt(None)
    if default and any(not given.anchor for given in prompts):
        yield f"{encoder.name} serves texts with {default!r} before them; here only the prompts of the job are used"


def blocks(count: int) -> Iterator[slice]:
    """Rows that are held in memory together."""
    for start in range(0, count, BLOCK_PAIRS):
        yield slice(start, min(start + BLOCK_PAIRS, count))


def source_moments(relations: FloatArray, sources: NDArray[np.int64], count: int) -> list[Moments]:
    """The moments of every source's relations, in one pass."""
    found = [Moments() for _ in range(count)]
    for rows in blocks(len(relations)):
        block = np.asarray(relations[rows])
        for source in range(count):
            found[source].update(block[sources[rows] == source])
    return found


def open_rows(path: Path, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
    """A file of rows in float32 as a memmap; None if it is not there or not whole."""
    with suppress(OSError, ValueError):
        rows = np.lib.format.open_memmap(path, mode="r")
        if rows.shape == shape and rows.dtype == np.float32:
            return rows
    return None
