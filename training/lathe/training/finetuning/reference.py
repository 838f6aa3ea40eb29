"""Reference vectors: what the encoder gave for each text before training, cached on disk, and relations of pairs."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.text_encoder import NO_PROMPT
from lathe.training.errors import JobError
from lathe.training.evaluation.store import VectorStore, text_key
from lathe.training.finetuning.mixture import Mixture
from lathe.training.settings import Prompts
from lathe.transforms.progress import Progress

ENCODE_TEXTS = 2048
"""Number of texts encoded between two writes to the cache."""


class ReferenceVectors:
    """Cache of an encoder's vectors on disk, shared by all jobs that use the same folder.

    Args:
        encoder: the model before training; its own prompts are not used, since the texts already carry theirs.
        root: folder of the caches; each encoder has its own, named by its fingerprint.
    """

    def __init__(self, encoder: Encoder, root: Path) -> None:
        self.encoder = encoder
        self.store = VectorStore(root / encoder.fingerprint, encoder.dimensions)

    def encode(self, texts: Sequence[str], on_progress: Progress) -> None:
        """Encode the texts that the cache on disk lacks. Vectors are written to it every `ENCODE_TEXTS` texts.

        A killed run resumes after its last write. Another process that uses the cache is waited for.
        """
        self.store.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.store.folder / ".lock"):
            self.store.reload()
            wanted = {text_key(text): text for text in texts}
            missing = [(key, text) for key, text in wanted.items() if key not in self.store]
            for start in range(0, len(missing), ENCODE_TEXTS):
                part = missing[start : start + ENCODE_TEXTS]
                vectors = self.encoder.encode([text for _, text in part], prompt_name=NO_PROMPT).vectors
                self.store.add([key for key, _ in part], vectors)
                done = start + len(part)
                on_progress(done / len(missing), f"encoding the reference, {done:,} of {len(missing):,} texts")

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the cached unit vectors of texts that were encoded before, `(n, d)`.

        Raises:
            JobError: if a vector is zero or not finite, since it has no direction.
            KeyError: if a text was not encoded.
        """
        found = self.store.get([text_key(text) for text in texts])
        lengths = np.linalg.norm(found, axis=1)
        broken = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
        if len(broken):
            raise JobError(f"the encoder makes no direction of the text {texts[broken[0]]!r:.80}")
        return found

    def relations(self, mixture: Mixture, rows: slice | None = None) -> NDArray[np.float32]:
        """Return the relations of pairs, `(n, 2d)`.
        A relation is the anchor's cached vector followed by the positive's (REZE, Sec. 3.1).

        Args:
            mixture: pairs whose texts were encoded.
            rows: slice of the pairs; None for all.

        Raises:
            JobError: if a vector is zero or not finite.
            KeyError: if a text was not encoded.
        """
        rows = rows or slice(None)
        return np.hstack([self.vectors(mixture.anchors[rows]), self.vectors(mixture.positives[rows])])


def list_prompt_warnings(encoder: Encoder, prompts: Iterable[Prompts]) -> Iterator[str]:
    """Yield a warning if the encoder has a default prompt, but a source of the job has none for its anchors."""
    default = encoder.prompt(None)
    if default and any(not given.anchor for given in prompts):
        yield f"{encoder.name} serves texts with {default!r} before them; here only the prompts of the job are used"
