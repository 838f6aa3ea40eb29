"""Out-of-domain corpora of a fit: sampled texts, and vectors of these texts."""

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.errors import SourceError
from lathe.training.sources.readers import BUILT_IN
from lathe.training.sources.source import Source, open_source
from lathe.transforms.files import create_file, make_folder, read_json_file
from lathe.transforms.progress import Progress
from lathe.transforms.vectors import FloatArray

OUT_OF_DOMAIN_ROWS = 1000
"""Maximum number of texts sampled from each out-of-domain corpus."""


def list_built_in_corpora(source: str | None) -> dict[str, str]:
    """Return the built-in out-of-domain corpora, as a dict of name to source.

    This is Python's docstrings (`pydoc`), or Python's language reference (`pydoc-topics`) for a fit on the docstrings.

    Args:
        source: path of the source that is fitted on; None for data without a path.
    """
    return {"pydoc-topics": "pydoc:topics"} if source == "pydoc:" else {"pydoc": "pydoc:"}


class OutOfDomainTexts:
    """Texts sampled from out-of-domain corpora.

    A corpus is read once, when its texts are first needed. The sampled texts of built-in corpora, which take seconds to
    read, are also cached on disk.

    Args:
        sources: source of each corpus by its name, written as for `open_source`.
        folder: cache folder of texts; created if needed.
    """

    def __init__(self, sources: Mapping[str, str], folder: Path) -> None:
        self.sources = sources
        self.folder = folder
        self._texts: dict[str, list[str]] = {}

    def read(self, name: str) -> list[str]:
        """Sample the distinct texts of a corpus, and cache the sample in memory, for built-in corpora also on disk.

        Raises:
            SourceError: if the corpus cannot be read, holds vectors, or has no text.
        """
        if name not in self._texts:
            source = open_source(self.sources[name])
            cached = source.written in BUILT_IN
            self._texts[name] = _load_or_sample(source, self.folder) if cached else sample_texts(source)
        return self._texts[name]

    def encode(self, encoder: TextEncoder | None, on_progress: Progress) -> dict[str, FloatArray]:
        """Encode the sampled texts of all corpora as vectors `(n, d)` by corpus. Returns `{}` without an encoder.

        Args:
            encoder: encoder of the texts, or None.
            on_progress: called with progress in [0, 1] and a message.

        Raises:
            SourceError: if a corpus cannot be read, holds vectors, or has no text.
        """
        if encoder is None:
            return {}
        vectors = {}
        for done, name in enumerate(self.sources):
            on_progress(done / len(self.sources), f"encoding out-of-domain text: {name}")
            vectors[name] = encoder.encode(self.read(name)).vectors
        return vectors


def sample_texts(source: Source) -> list[str]:
    """Sample at most `OUT_OF_DOMAIN_ROWS` distinct, nonblank texts, evenly spaced. A source of vectors raises.

    Raises:
        SourceError: if the source cannot be read, holds vectors, or has no text.
    """
    texts: list[str] = []
    for batch in source.batches():
        if not isinstance(batch.values, list):
            raise SourceError(f"the out-of-domain source {source.written!r} holds vectors; it must hold texts")
        texts.extend(text for text in batch.values if text.strip())
    texts = list(dict.fromkeys(texts))
    if not texts:
        raise SourceError(f"the out-of-domain source {source.written!r} holds no texts")
    return [texts[i] for i in np.linspace(0, len(texts) - 1, min(OUT_OF_DOMAIN_ROWS, len(texts))).astype(int)]


def cached_texts_path(source: Source, folder: Path) -> Path:
    """Return the path of the file in `folder` that caches the sampled texts of a built-in source as a JSON list.

    The file name depends on the version of Python, because the texts differ between versions.
    """
    key = f"{source.written} {sys.version} {OUT_OF_DOMAIN_ROWS}"
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _load_or_sample(source: Source, folder: Path) -> list[str]:
    """Load the sampled texts of a built-in source from the cache in `folder`, or sample the source and cache them."""
    path = cached_texts_path(source, folder)
    try:
        texts: list[str] = read_json_file(path)
    except (OSError, ValueError):
        texts = sample_texts(source)
        # Other processes may be reading or writing the file too: they see the whole file or none.
        make_folder(folder)
        staging = path.with_suffix(f".{os.getpid()}.json")
        with create_file(staging) as file:
            file.write(json.dumps(texts).encode())
        staging.replace(path)

    return texts
