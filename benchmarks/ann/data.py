"""The vectors of a benchmark: reading, checks, and a random split for each seed."""

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.starters import print_progress
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.fitting.encoding import encode_source
from lathe.training.sources.source import open_source
from lathe.transforms.statistics import unit_rows

QUERIES, TRAIN = "test", "train"
"""Names of the queries and of the corpus in files of ann-benchmarks."""
HDF5 = (".hdf5", ".h5")
UNIT_WITHIN = 1e-3
MIN_FIT = 1000

Vectors = NDArray[np.float32]
Numbers = NDArray[np.int64]


class DataError(Exception):
    """Vectors that the benchmark cannot use.

    The message is a sentence.
    """


@dataclass(frozen=True)
class Data:
    """Distinct vectors of length 1.

    Attributes:
        name: name of the file or source.
        vectors: `(n, d)`.
        queries: `(q, d)`, none of them among the vectors; None if each seed draws its own.
        notes: what was left out, in words.
    """

    name: str
    vectors: Vectors
    queries: Vectors | None
    notes: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Hash that identifies these vectors and queries."""
        digest_of_vectors = hashlib.sha256(self.vectors.tobytes())
        digest_of_vectors.update(b"" if self.queries is None else self.queries.tobytes())
        return digest_of_vectors.hexdigest()[:16]

    @property
    def notes_as_sentences(self) -> list[str]:
        """The notes, each with a full stop."""
        return [f"{note}." for note in self.notes]


@dataclass(frozen=True)
class Split:
    """Corpus, queries and rows to fit on of one seed.

    No row is in two of them.

    Attributes:
        corpus: `(n, d)` to be searched.
        queries: `(q, d)`.
        fit: `(f, d)` for methods that are fitted here.
    """

    corpus: Vectors
    queries: Vectors
    fit: Vectors


def read_data(vectors: str | None, source: str | None, queries: str | None) -> Data:
    """Read the vectors, and the queries if there are any, and drop zeros and duplicates.

    Args:
        vectors: an .npy file, or an HDF5 file as ann-benchmarks writes them.
        source: any source, of texts or of vectors.
        queries: a source of queries; an HDF5 file has its own.

    Raises:
        DataError: for vectors that are compared by anything but their directions.
        SourceError: for a file or source that cannot be read.
    """
    written = vectors or source or ""
    path = Path(written.partition("#")[0])
    notes: list[str] = []
    query_rows: Vectors | None
    if path.suffix in HDF5:
        with open_hdf5(path) as file:
            base = read_data_set(file, TRAIN)
            query_rows = read_rows(queries) if queries else read_data_set(file, QUERIES)
            require_directions(file, base)
    else:
        base, query_rows = read_rows(written), read_rows(queries) if queries else None
    if query_rows is not None and query_rows.shape[1] != base.shape[1]:
        raise DataError(f"the queries are {query_rows.shape[1]} wide, the vectors {base.shape[1]}")
    base = drop_duplicates(base, "vectors", notes)
    if query_rows is not None:
        query_rows = drop_duplicates(query_rows, "queries", notes)
        inside = np.isin(view_as_keys(query_rows), view_as_keys(base))
        if inside.any():
            notes.append(f"{int(inside.sum()):,} queries are among the vectors and were left out")
        query_rows = query_rows[~inside]
    return Data(path.name or written, base, query_rows, tuple(notes))


def read_rows(written: str) -> Vectors:
    """Read all vectors of a source, encoding its texts if it has texts."""
    source = open_source(written)
    if source.kind() == "vectors":
        return np.concatenate([np.asarray(batch.values, np.float32) for batch in source.batches()])
    with tempfile.TemporaryDirectory() as folder:
        return np.array(encode_source(source, Encoder(DEFAULT_ENCODER), Path(folder), print_progress).vectors)


def open_hdf5(path: Path) -> Any:
    """Open an HDF5 file.

    Raises:
        DataError: if it cannot be read.
    """
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise DataError(f"{path.name} is not an HDF5 file that can be read: {error}") from error


def read_data_set(file: Any, name: str) -> Vectors:
    """Read all vectors of a data set of an HDF5 file.

    Raises:
        DataError: if the file has no data set of that name, or it holds no vectors of floats.
    """
    if name not in file or file[name].ndim != 2 or file[name].dtype.kind != "f":
        raise DataError(f"{Path(file.filename).name} has no vectors {name!r}; it has {', '.join(file)}")
    return np.asarray(file[name], np.float32)


def require_directions(file: Any, vectors: Vectors) -> None:
    """Raise `DataError` unless an HDF5 file's vectors are compared by their directions, or all have length 1."""
    distance = file.attrs.get("distance", "angular")
    distance = distance.decode() if isinstance(distance, bytes) else str(distance)
    lengths = np.linalg.norm(vectors, axis=1)
    if distance not in ("angular", "cosine") and np.abs(lengths - 1).max(initial=0) > UNIT_WITHIN:
        raise DataError(
            f"{Path(file.filename).name} is searched by the distance {distance!r} and its vectors have lengths from "
            f"{lengths.min():.3g} to {lengths.max():.3g}: text embeddings are compared by their directions "
            "(angular), and so are the chains that are judged here"
        )


def drop_duplicates(rows: Vectors, what: str, notes: list[str]) -> Vectors:
    """Normalize rows, and drop those that are zero or duplicates.

    Args:
        rows: vectors `(n, d)`.
        what: what the rows are, for the notes.
        notes: list to which a note on each kind of dropped rows is appended.
    """
    is_nonzero = rows.any(axis=1)
    if not is_nonzero.all():
        notes.append(f"{int((~is_nonzero).sum()):,} of {len(rows):,} {what} are zero and were left out")
    unit: Vectors = unit_rows(torch.from_numpy(np.ascontiguousarray(rows[is_nonzero], np.float32))).numpy()
    _, first = np.unique(view_as_keys(unit), return_index=True)
    if len(first) < len(unit):
        notes.append(f"{len(unit) - len(first):,} of {len(unit):,} {what} are duplicates and were left out")
    return np.ascontiguousarray(unit[np.sort(first)])


def view_as_keys(rows: Vectors) -> NDArray[np.void]:
    """View rows as values that compare as a whole."""
    rows = np.ascontiguousarray(rows) + np.float32(0)  # −0 is 0
    keys: NDArray[np.void] = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1])))[:, 0]
    return keys


def split_rows(data: Data, seed: int, corpus: int, queries: int, fit: int, k: int) -> Split:
    """Draw the corpus, the queries and the rows to fit on of a seed.

    Numbers that are too large for the data are made smaller.

    Raises:
        DataError: if there are too few vectors or queries.
    """
    rows = np.random.default_rng(seed).permutation(len(data.vectors))
    query_rows = data.queries
    if query_rows is None:
        queries = min(queries, len(rows) // 5)
        query_rows, rows = data.vectors[np.sort(rows[:queries])], rows[queries:]
    else:
        query_rows = query_rows[np.random.default_rng(seed).permutation(len(query_rows))[:queries]]
    corpus = min(corpus, max(len(rows) - min(fit, len(rows) // 5), 0))
    if corpus <= k or not len(query_rows):
        raise DataError(
            f"{len(data.vectors):,} distinct vectors leave {corpus:,} to search with {len(query_rows):,} queries: "
            f"there must be more than k = {k}, and a query"
        )
    return Split(
        data.vectors[np.sort(rows[:corpus])],
        query_rows,
        data.vectors[np.sort(rows[corpus : corpus + max(fit, MIN_FIT)])],
    )


def find_nearest(queries: Vectors, corpus: Vectors, k: int) -> Numbers:
    """Search exactly for the nearest rows `(q, k)` by inner product, the best first.

    This is done on a GPU if FAISS finds one.
    """
    if has_gpu():
        return find_nearest_on_gpu(queries, corpus, k)
    rows = []
    corpus_tensor = torch.from_numpy(corpus)
    for start in range(0, len(queries), 128):
        scores = torch.from_numpy(queries[start : start + 128]) @ corpus_tensor.T
        rows.append(scores.topk(min(k, len(corpus)), dim=1).indices.numpy())
    return np.concatenate(rows)


def has_gpu() -> bool:
    """Return whether FAISS finds a GPU."""
    try:
        import faiss
    except ImportError:
        return False
    return hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0


def find_nearest_on_gpu(queries: Vectors, corpus: Vectors, k: int) -> Numbers:
    """Search exactly on a GPU, as `find_nearest` does."""
    import faiss

    gpu, count = faiss.StandardGpuResources(), min(k, len(corpus))
    _, rows = faiss.knn_gpu(gpu, queries, corpus, count, metric=faiss.METRIC_INNER_PRODUCT)
    return np.asarray(rows, np.int64)
