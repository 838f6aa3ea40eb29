"""The vectors of a benchmark: read, checked, and split anew by each seed."""

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.starters import show
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.fitting.encoding import encode_source
from lathe.training.sources.source import open_source
from lathe.transforms.statistics import unit_rows

QUERIES, TRAIN = "test", "train"
"""What ann-benchmarks calls them in its files."""
HDF5 = (".hdf5", ".h5")
UNIT_WITHIN = 1e-3
MIN_FIT = 1000

Vectors = NDArray[np.float32]
Numbers = NDArray[np.int64]


class DataError(Exception):
    """Vectors that cannot be measured on, in a sentence."""


@dataclass(frozen=True)
class Data:
    """Distinct vectors of length 1.

    Attributes:
        name: of the file or source.
        vectors: `(n, d)`.
        queries: `(q, d)`, none of them among the vectors; None where every seed draws its own.
        notes: what was left out, in words.
    """

    name: str
    vectors: Vectors
    queries: Vectors | None
    notes: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Tells these vectors from others."""
        found = hashlib.sha256(self.vectors.tobytes())
        found.update(b"" if self.queries is None else self.queries.tobytes())
        return found.hexdigest()[:16]

    @property
    def notes_as_sentences(self) -> list[str]:
        """The notes, to be read."""
        return [f"{note}." for note in self.notes]


@dataclass(frozen=True)
class Split:
    """What one seed measures with; no row is in two of them.

    Attributes:
        corpus: `(n, d)` to be searched.
        queries: `(q, d)`.
        fit: `(f, d)` for methods that are fitted here.
    """

    corpus: Vectors
    queries: Vectors
    fit: Vectors


def read_data(vectors: str | None, source: str | None, queries: str | None) -> Data:
    """The vectors a user names.

    Args:
        vectors: an .npy file, or an HDF5 file as ann-benchmarks writes them.
        source: any source, of texts or of vectors.
        queries: a source of queries; an HDF5 file has its own.

    Raises:
        DataError: for vectors that are compared by anything but their directions.
        SourceError: for what cannot be read.
    """
    written = vectors or source or ""
    path = Path(written.partition("#")[0])
    notes: list[str] = []
    asked: Vectors | None
    if path.suffix in HDF5:
        with open_hdf5(path) as file:
            base = read_set(file, TRAIN)
            asked = read_rows(queries) if queries else read_set(file, QUERIES)
            require_directions(file, base)
    else:
        base, asked = read_rows(written), read_rows(queries) if queries else None
    if asked is not None and asked.shape[1] != base.shape[1]:
        raise DataError(f"the queries are {asked.shape[1]} wide, the vectors {base.shape[1]}")
    base = distinct(base, "vectors", notes)
    if asked is not None:
        asked = distinct(asked, "queries", notes)
        inside = np.isin(as_keys(asked), as_keys(base))
        if inside.any():
            notes.append(f"{int(inside.sum()):,} queries are among the vectors and were left out")
        asked = asked[~inside]
    return Data(path.name or written, base, asked, tuple(notes))


def read_rows(written: str) -> Vectors:
    """All vectors of a source; texts are encoded."""
    source = open_source(written)
    if source.kind() == "vectors":
        return np.concatenate([np.asarray(batch.values, np.float32) for batch in source.batches()])
    with tempfile.TemporaryDirectory() as folder:
        return np.array(encode_source(source, Encoder(DEFAULT_ENCODER), Path(folder), show).vectors)


def open_hdf5(path: Path) -> Any:
    """Open an HDF5 file; raise `DataError` if it cannot be read."""
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise DataError(f"{path.name} is not an HDF5 file that can be read: {error}") from error


def read_set(file: Any, name: str) -> Vectors:
    """All vectors of a data set of an HDF5 file; raise `DataError` if it has none of that name, or no floats."""
    if name not in file or file[name].ndim != 2 or file[name].dtype.kind != "f":
        raise DataError(f"{Path(file.filename).name} has no vectors {name!r}; it has {', '.join(file)}")
    return np.asarray(file[name], np.float32)


def require_directions(file: Any, vectors: Vectors) -> None:
    """Raise `DataError` unless an HDF5 file's vectors are compared by their directions, or might as well be."""
    distance = file.attrs.get("distance", "angular")
    distance = distance.decode() if isinstance(distance, bytes) else str(distance)
    lengths = np.linalg.norm(vectors, axis=1)
    if distance not in ("angular", "cosine") and np.abs(lengths - 1).max(initial=0) > UNIT_WITHIN:
        raise DataError(
            f"{Path(file.filename).name} is searched by the distance {distance!r} and its vectors have lengths from "
            f"{lengths.min():.3g} to {lengths.max():.3g}: text embeddings are compared by their directions "
            "(angular), and so are the chains that are judged here"
        )


def distinct(rows: Vectors, what: str, notes: list[str]) -> Vectors:
    """Rows of length 1, each once, without those of no direction; says what was left out."""
    there = rows.any(axis=1)
    if not there.all():
        notes.append(f"{int((~there).sum()):,} of {len(rows):,} {what} are zero and were left out")
    unit: Vectors = unit_rows(torch.from_numpy(np.ascontiguousarray(rows[there], np.float32))).numpy()
    _, first = np.unique(as_keys(unit), return_index=True)
    if len(first) < len(unit):
        notes.append(f"{len(unit) - len(first):,} of {len(unit):,} {what} are duplicates and were left out")
    return np.ascontiguousarray(unit[np.sort(first)])


def as_keys(rows: Vectors) -> NDArray[np.void]:
    """Rows as values that compare as a whole."""
    rows = np.ascontiguousarray(rows) + np.float32(0)  # −0 is 0
    keys: NDArray[np.void] = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1])))[:, 0]
    return keys


def split(data: Data, seed: int, corpus: int, queries: int, fit: int, k: int) -> Split:
    """Rows drawn for a seed; what is too many is made smaller.

    Raises:
        DataError: if there are too few to say anything.
    """
    rows = np.random.default_rng(seed).permutation(len(data.vectors))
    asked = data.queries
    if asked is None:
        queries = min(queries, len(rows) // 5)
        asked, rows = data.vectors[np.sort(rows[:queries])], rows[queries:]
    else:
        asked = asked[np.random.default_rng(seed).permutation(len(asked))[:queries]]
    corpus = min(corpus, max(len(rows) - min(fit, len(rows) // 5), 0))
    if corpus <= k or not len(asked):
        raise DataError(
            f"{len(data.vectors):,} distinct vectors leave {corpus:,} to search with {len(asked):,} queries: "
            f"there must be more than k = {k}, and a query"
        )
    return Split(
        data.vectors[np.sort(rows[:corpus])], asked, data.vectors[np.sort(rows[corpus : corpus + max(fit, MIN_FIT)])]
    )


def nearest(queries: Vectors, corpus: Vectors, k: int) -> Numbers:
    """Exact search: rows `(q, k)` by inner product, the best first; on a GPU where FAISS finds one."""
    if gpu():
        return nearest_on_gpu(queries, corpus, k)
    found = []
    whole = torch.from_numpy(corpus)
    for start in range(0, len(queries), 128):
        scores = torch.from_numpy(queries[start : start + 128]) @ whole.T
        found.append(scores.topk(min(k, len(corpus)), dim=1).indices.numpy())
    return np.concatenate(found)


def gpu() -> bool:
    """Whether FAISS finds a GPU."""
    try:
        import faiss
    except ImportError:
        return False
    return hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0


def nearest_on_gpu(queries: Vectors, corpus: Vectors, k: int) -> Numbers:
    """`nearest` by faiss-gpu."""
    import faiss

    gpu, count = faiss.StandardGpuResources(), min(k, len(corpus))
    _, rows = faiss.knn_gpu(gpu, queries, corpus, count, metric=faiss.METRIC_INNER_PRODUCT)
    return np.asarray(rows, np.int64)
