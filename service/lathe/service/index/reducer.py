"""Mapping from an index's original vectors to those in its graph, by the chain stored in its record."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lathe.service.errors import BadValueError
from lathe.service.index.spec import IndexSpec
from lathe.training.settings import Metric
from lathe.transforms.artifact import MANIFEST, TENSORS, read_file
from lathe.transforms.chain import Chain, build_leading_query_maps, serves_dimensions
from lathe.transforms.codes import Quantizer
from lathe.transforms.errors import ArtifactError
from lathe.transforms.linear import Normalize
from lathe.transforms.statistics import MIN_ORDINARY_NORM, is_near_zero, row_norms, unit_rows

MAX_HALF, MIN_HALF = 65504.0, 2.0**-14
"""Largest float16, and smallest float16 with full precision."""

Vectors = NDArray[np.float32]
"""Float32 vectors, one per row."""


class Reducer:
    """The chain of transforms of an index, applied to documents and queries. Without a chain, vectors are not reduced.

    A nested chain is cut to the index's dimensions. A chain may map queries otherwise than documents. If it ends in a
    quantizer, documents have codes and queries are floats.

    Args:
        spec: settings of the index.
        artifact: manifest and tensors of the chain; None for raw vectors.

    Attributes:
        documents, queries: the chain's floats for documents and for queries, folded; None without a chain.
        leading: maps of queries alone with which the chain begins; None without any.
        quantizer: the chain's quantizer; None without one.
        unit: whether the chain's floats have length 1.
        only_normalizes: whether reduced queries are the originals, of length 1 for cosine.

    Raises:
        ArtifactError: if the chain is damaged, or of other dimensions than the index.
    """

    def __init__(self, spec: IndexSpec, artifact: tuple[bytes, bytes] | None) -> None:
        self.metric: Metric = spec.metric
        self.documents: Chain | None = None
        self.queries: Chain | None = None
        self.quantizer: Quantizer | None = None
        self.leading: Chain | None = None
        self.unit = False
        self.only_normalizes = artifact is None
        if artifact is not None:
            chain = _load_chain(spec, artifact)
            cut = spec.dimensions if chain.nested else None
            self.quantizer = chain.quantizer
            # Folded: neighbouring linear steps become one matrix, so that a vector is multiplied once.
            self.queries = chain.fold(cut, side="query")
            self.documents = chain.without_quantizer().fold(cut) if chain.two_sided else self.queries
            self.leading = build_leading_query_maps(chain)
            self.unit = chain.normalize
            steps = self.queries.transforms
            self.only_normalizes = self.metric == "cosine" and all(isinstance(step, Normalize) for step in steps)

    def reduce_documents(self, originals: Vectors) -> Vectors:
        """Reduce original vectors `(n, d)` to the vectors `(n, k)` that are searched. For cosine they have length 1.

        With a quantizer these are the vectors that the codes stand for.

        Raises:
            BadValueError: if a result is not finite.
        """
        if self.quantizer is not None:
            return self.decode(self.encode(originals))
        return self.reduce_unquantized(originals)

    def reduce_queries(self, originals: Vectors) -> Vectors:
        """Return query vectors `(n, d)` reduced to the floats `(n, k)` with which reduced documents are searched.

        They have length 1 for cosine. The chain's map of queries is used, without a quantizer.

        Raises:
            BadValueError: if a result is not finite.
        """
        if self.only_normalizes:
            return self._prepare(_require_finite(originals))
        return self._prepare(_map_to_floats(self.queries, originals), self.unit)

    def map_for_rescoring(self, originals: Vectors) -> Vectors:
        """Return query vectors `(n, d)` as they are compared with the documents' original vectors in rescoring.

        A map of queries at the beginning of the chain, such as a query adapter, counts for rescoring too. All other
        steps of the chain approximate the originals' own scores. Rows have length 1 for cosine.

        Raises:
            BadValueError: if a result is not finite.
        """
        return self._prepare(_map_to_floats(self.leading, originals))

    def reduce_unquantized(self, originals: Vectors) -> Vectors:
        """Reduce original documents `(n, d)` to floats `(n, k)` by the chain of transforms without its quantizer.

        For cosine they have length 1.

        Raises:
            BadValueError: if a result is not finite.
        """
        return self._prepare(_map_to_floats(self.documents, originals), self.unit)

    def encode(self, originals: Vectors) -> NDArray[np.uint8]:
        """Return the byte codes `(n, b)` of original vectors `(n, d)`, by a chain that ends in a quantizer.

        Raises:
            BadValueError: if a result is not finite.
        """
        assert self.quantizer is not None
        codes: NDArray[Any] = self.quantizer.transform(_map_to_floats(self.documents, originals))
        return np.ascontiguousarray(codes).view(np.uint8)

    def decode(self, codes: NDArray[np.uint8]) -> Vectors:
        """Return the vectors `(n, k)` that the chain's byte codes `(n, b)` stand for. For cosine they have length 1."""
        assert self.quantizer is not None
        return self._prepare(self.quantizer.inverse_transform(self.view_codes(codes)))

    def measure_bytes(self, dimensions: int) -> int:
        """Return the number of bytes of a reduced vector of `dimensions` dimensions, as byte code or floats."""
        return 4 * dimensions if self.quantizer is None else self.quantizer.code_bytes(dimensions)

    def view_codes(self, codes: NDArray[np.uint8]) -> NDArray[Any]:
        """Return byte codes `(n, b)` as an array of the quantizer's dtype, int8 or uint8, without copying them."""
        assert self.quantizer is not None
        return codes.view(np.int8 if self.quantizer.code_dtype == torch.int8 else np.uint8)

    def _prepare(self, reduced: Vectors, unit: bool = False) -> Vectors:
        """Return reduced vectors as a contiguous array, normalized for cosine unless `unit` says that they are."""
        return np.ascontiguousarray(normalize_rows(reduced) if self.metric == "cosine" and not unit else reduced)

    def convert_to_half(self, originals: Vectors) -> NDArray[np.float16]:
        """Return original vectors `(n, d)` as float16, as stored for rescoring. For cosine they are normalized first.

        Raises:
            BadValueError: if the metric is not cosine, and float16 cannot hold the vectors.
        """
        if self.metric == "cosine":
            return normalize_rows(originals).astype(np.float16)
        require_float16(originals)
        return originals.astype(np.float16)


def _map_to_floats(chain: Chain | None, originals: Vectors) -> Vectors:
    """Map vectors `(n, d)` by a chain to floats `(n, k)`. Raise `BadValueError` if a result is not finite."""
    return _require_finite(originals if chain is None else chain.transform(originals))


def _require_finite(vectors: Vectors) -> Vectors:
    if not np.isfinite(vectors).all():
        raise BadValueError("the vectors hold numbers too large to map in float32", param="vectors")
    return vectors


def _load_chain(spec: IndexSpec, artifact: tuple[bytes, bytes]) -> Chain:
    """Load an index's chain of transforms from the bytes of its manifest and tensors.

    Raises:
        ArtifactError: if they are damaged, or the chain does not map the index's vectors to its dimensions.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name, payload in zip((MANIFEST, TENSORS), artifact, strict=True):
                (Path(folder) / name).write_bytes(payload)
            chain = Chain.load(folder)
    except (ArtifactError, TypeError) as error:  # a TypeError if the record holds text in place of bytes
        raise ArtifactError(f"the index's chain {spec.chain[:80]}: {error}") from error
    full = chain.output_dimensions or spec.width
    if chain.input_dimensions not in (None, spec.width) or not serves_dimensions(full, chain.nested, spec.dimensions):
        raise ArtifactError(
            f"the index's chain {spec.chain[:80]} maps {chain.input_dimensions} dimensions to "
            f"{chain.describe_dimensions()}, the index {spec.width} to {spec.dimensions}"
        )
    return chain


def read_artifact_files(folder: Path) -> tuple[bytes, bytes]:
    """Return the manifest and the tensors, as bytes, of a chain of transforms that is saved in a folder."""
    return read_file(folder, MANIFEST), read_file(folder, TENSORS)


def normalize_rows(vectors: Vectors) -> Vectors:
    """Return a copy of the vectors `(n, d)` with rows of length 1. Rows without a direction become zeros."""
    vectors = np.asarray(vectors, np.float32)
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    if norms.size and norms.min() > MIN_ORDINARY_NORM and norms.max() < np.inf:  # NumPy begins sooner than torch
        quick: Vectors = vectors / norms[:, None]
        return quick
    rows: Vectors = unit_rows(torch.from_numpy(np.require(vectors, np.float32, ["C", "W"]))).numpy()
    return rows


def require_finite_norms(vectors: Vectors) -> NDArray[np.float32]:
    """Return the squared norms `(n,)` of vectors.

    Raises:
        BadValueError: if a vector is so long that its norm overflows float32; the message says which.
    """
    with np.errstate(over="ignore"):
        squares: NDArray[np.float32] = np.einsum("ij,ij->i", vectors, vectors)
    if not squares.max(initial=0) < np.inf:
        raise BadValueError(
            f"vector {int((~np.isfinite(squares)).argmax())} is longer than float32 can compare (1.8e19)",
            param="vectors",
        )
    return squares


def require_directions(vectors: Vectors, squares: NDArray[np.float32]) -> None:
    """Raise `BadValueError` if a vector is zero, or so short that the transforms treat it as zero.

    Args:
        vectors: vectors `(n, d)`.
        squares: squared norms of the vectors `(n,)`.
    """
    if squares.min(initial=np.inf) > MIN_ORDINARY_NORM**2:  # torch would begin later than NumPy has ended
        return
    empty = is_near_zero(row_norms(torch.from_numpy(np.require(vectors, np.float32, ["W"]))), torch.float32)
    if empty.any():
        raise BadValueError(
            f"vector {int(empty.int().argmax())} is zero, or shorter than float32 can hold (1.2e-38): it has no "
            "direction to compare",
            param="vectors",
        )


def require_float16(vectors: Vectors) -> None:
    """Raise `BadValueError` if float16 cannot hold a vector, because its largest entry is too large or too small.

    The largest absolute entry of each nonzero vector must be within float16's normal range.
    """
    largest = np.abs(vectors).max(axis=1, initial=0)
    invalid = (largest > MAX_HALF) | ((largest > 0) & (largest < MIN_HALF))
    if invalid.any():
        raise BadValueError(
            f"vector {int(invalid.argmax())} is too large or too small for float16, in which it would be stored "
            f"(its largest entry must lie between {MIN_HALF:.1e} and {MAX_HALF:,.0f}): scale the vectors, or use "
            "the metric cosine with originals in float32",
            param="vectors",
        )
