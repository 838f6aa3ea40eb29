"""Out-of-domain corpora of a fit: their sampled texts, read once, and the vectors of these, cached on disk."""

import hashlib
import io
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.errors import SourceError
from lathe.training.fitting.requests import NewFit
from lathe.training.sources.readers import BUILT_IN
from lathe.training.sources.source import Source, open_source
from lathe.transforms.files import create_file, make_folder, read_json_file
from lathe.transforms.npy import open_npy
from lathe.transforms.progress import Progress
from lathe.transforms.vectors import FloatArray

OUT_OF_DOMAIN_ROWS = 1000
"""Maximum number of texts sampled from each out-of-domain corpus."""


def list_built_in_corpora(source: str | None) -> dict[str, str]:
    """Return the out-of-domain corpora that need no data, sources by name: Python's docstrings, or Python's language
    reference if the docstrings are the source themselves.

    Args:
        source: path of the source that is fitted on; None for data without a path.
    """
    return {"pydoc-topics": "pydoc:topics"} if source == "pydoc:" else {"pydoc": "pydoc:"}


class OutOfDomainTexts:
    """Texts sampled from out-of-domain corpora.

    A corpus is read when its texts are first needed, and once. The texts of built-in corpora, which take seconds to
    read, are also cached on disk.

    Args:
        sources: source of each corpus by its name, written as for `open_source`.
        folder: cache folder of texts and vectors; created if needed.
    """

    def __init__(self, sources: Mapping[str, str], folder: Path) -> None:
        self.sources = sources
        self.folder = folder
        self._texts: dict[str, list[str]] = {}

    @classmethod
    def from_request(cls, request: NewFit, folder: Path) -> "OutOfDomainTexts":
        """Return the out-of-domain corpora of a fit: Python's docstrings, and those that the request names.

        A fit on the docstrings themselves gets Python's language reference instead of them.
        """
        return cls(list_built_in_corpora(request.source.path) | request.out_of_domain, folder)

    def read(self, name: str) -> list[str]:
        """Return a sample of the distinct texts of a corpus, read from the source or a cache."""
        if name not in self._texts:
            source = open_source(self.sources[name])
            cached = source.written in BUILT_IN
            self._texts[name] = _load_or_sample(source, self.folder) if cached else sample_texts(source)
        return self._texts[name]

    def read_all(self) -> dict[str, list[str]]:
        """Return the texts sampled from each corpus, by name."""
        return {name: self.read(name) for name in self.sources}

    def encode(self, encoder: TextEncoder | None, on_progress: Progress) -> dict[str, FloatArray]:
        """Encode the texts of all corpora, and return their vectors `(n, d)` by corpus name. Vectors are cached for
        each encoder. Without an encoder, the result is empty.

        Args:
            encoder: encoder of the texts.
            on_progress: called with progress in [0, 1] and a message.

        Raises:
            SourceError: if a corpus cannot be read or holds vectors.
        """
        if encoder is None:
            return {}
        found = {}
        for done, name in enumerate(self.sources):
            on_progress(done / len(self.sources), f"encoding out-of-domain text: {name}")
            found[name] = self._load_or_encode(name, encoder)
        return found

    def _load_or_encode(self, name: str, encoder: TextEncoder) -> FloatArray:
        """Return the vectors `(n, d)` of a corpus's texts, from the cache folder if they are there. Otherwise they are
        encoded and cached.
        """
        source = open_source(self.sources[name])
        # Texts of a built-in source are read only if their vectors are not cached.
        key = built_in_cache_key(source) if source.written in BUILT_IN else repr(self.read(name))
        folder = self.folder / encoder.vectors_key
        return load_or_encode(folder, key, lambda: encoder.encode(self.read(name)).vectors)


def built_in_cache_key(source: Source) -> str:
    """Return the cache key of a built-in source's sampled texts: its name, Python's version and `OUT_OF_DOMAIN_ROWS`.

    The texts themselves are not needed for the key; reading them takes seconds.
    """
    return f"{source.written} {sys.version} {OUT_OF_DOMAIN_ROWS}"


def sample_texts(source: Source) -> list[str]:
    """Read a source, and return up to `OUT_OF_DOMAIN_ROWS` of its distinct texts, evenly spaced and without blank ones.

    Raises:
        SourceError: if the source holds vectors, or no text.
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
    """Return the file in `folder` that caches the sampled texts of a built-in source, as a JSON list."""
    return folder / f"{_hash_key(built_in_cache_key(source))}.json"


def _load_or_sample(source: Source, folder: Path) -> list[str]:
    """Return the sampled texts of a built-in source. If the cache lacks them or is damaged, read and cache them."""
    path = cached_texts_path(source, folder)
    try:
        texts: list[str] = read_json_file(path)
    except (OSError, ValueError):
        texts = sample_texts(source)
        _write_cache_file(path, json.dumps(texts).encode())
    return texts


def load_or_encode(folder: Path, key: str, compute: Callable[[], FloatArray]) -> FloatArray:
    """Return the vectors cached in `folder` under `key`. If they are missing or damaged, they are computed and cached.

    Args:
        folder: cache folder; created if needed.
        key: any text, hashed for the file name.
        compute: returns the vectors.
    """
    path = folder / f"{_hash_key(key)}.npy"
    try:
        return np.array(open_npy(path))
    except (OSError, ValueError, EOFError):
        vectors = compute()
    buffer = io.BytesIO()
    np.save(buffer, vectors)
    _write_cache_file(path, buffer.getbuffer())
    return vectors


def _hash_key(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def _write_cache_file(path: Path, payload: bytes | memoryview) -> None:
    """Write a file that other processes may be reading or writing too: they see the whole file or none."""
    make_folder(path.parent)
    staging = path.with_suffix(f".{os.getpid()}{path.suffix}")
    with create_file(staging) as file:
        file.write(payload)
    staging.replace(path)
