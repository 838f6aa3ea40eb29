"""Methods that reduce vectors, each ready to be applied."""

from pathlib import Path

import numpy as np

from benchmarks.ann.data import DataError, Vectors
from lathe.service.home import Home
from lathe.service.publishing.context import open_registry
from lathe.service.settings import read_settings
from lathe.transforms import Chain, Transform, build_steps, parse_steps
from lathe.transforms.base import TRANSFORMS
from lathe.transforms.linear import Affine

FULL = "none"
"""The method that leaves vectors as they are."""


class Space:
    """A method that is ready to reduce vectors.

    Args:
        method: name of the method.
        chain: its chain; None leaves vectors as they are.
        size: dimensions to cut a nested chain to; None for all.

    Attributes:
        digest: SHA-256 of the tensors of a chain that was loaded; None otherwise.
    """

    def __init__(self, method: str, chain: Chain | None, size: int | None = None) -> None:
        self.method = method
        self.chain = chain
        self.size = size
        self.digest: str | None = chain.metadata.get("tensors_sha256") if chain else None
        self.folded = chain.fold(size) if chain else None
        codes = chain is not None and chain.quantizer is not None
        self.query_chain = chain[:-1].fold(size) if chain is not None and codes else self.folded
        self.product = extract_product(self.query_chain)

    def reduce(self, vectors: Vectors) -> Vectors:
        """Reduce vectors `(n, d)` to `(n, k)`.

        Codes are decoded to floats.
        """
        if self.folded is None:
            return vectors
        return np.ascontiguousarray(self.folded.floats(vectors), np.float32)

    def reduce_queries(self, queries: Vectors) -> Vectors:
        """Reduce queries `(q, d)` to `(q, k)`, never to codes.

        Queries are not stored, and codes are compared with floats. A chain that folds into one product is applied by
        NumPy, as a program would that searches in its own memory.
        """
        if self.query_chain is None:
            return queries
        if self.product is None:
            return np.asarray(self.query_chain.floats(queries), np.float32)
        weight, bias, normalize = self.product
        reduced = queries @ weight
        if bias is not None:
            reduced += bias
        if normalize:
            reduced /= np.sqrt(np.einsum("ij,ij->i", reduced, reduced))[:, None]
        return reduced

    def save(self, folder: Path) -> None:
        """Save the chain for the processes that search."""
        if self.chain is not None:
            self.chain.save(folder)


Product = tuple[Vectors, Vectors | None, bool]
"""A weight `(d, k)`, a bias `(k,)`, and whether outputs are normalised."""


def extract_product(folded: Chain | None) -> Product | None:
    """Return the weight and bias of a chain that folds into one product, or None for any other chain."""
    if folded is None or len(folded.transforms) != 1 or not isinstance(folded.transforms[0], Affine):
        return None
    affine = folded.transforms[0]
    bias = None if affine.bias is None else affine.bias.numpy()
    return np.ascontiguousarray(affine.weight.numpy().T), bias, affine.normalize


def is_fitted_here(method: str) -> bool:
    """Return whether a method is steps to fit, instead of a stored chain."""
    return method != FULL and method.replace("=", ":").partition(":")[0].partition(",")[0] in TRANSFORMS


def find_space(method: str, fit: Vectors, seed: int) -> Space:
    """Return the space of a method: `none`, a chain as `NAME[@VERSION][:SIZE]`, or steps such as `geopres:128`.

    Steps are fitted here.

    Args:
        method: name of the method.
        fit: rows `(f, d)` to fit steps on.
        seed: seed for steps that take one.

    Raises:
        DataError: for a chain that does not take these vectors.
    """
    if method == FULL:
        return Space(method, None)
    if is_fitted_here(method):
        return Space(method, Chain(seed_steps(method, seed)).fit(fit))
    name, size = method.partition(":")[0], parse_size(method)
    registry = open_registry(Home(read_settings().home))
    loaded = registry.load(name)
    if loaded.chain.input_dimensions not in (None, fit.shape[1]):
        raise DataError(
            f"the chain {name} takes vectors {loaded.chain.input_dimensions} wide, these are {fit.shape[1]}: "
            f"name another with --method, or steps that are fitted here, such as geopres:{fit.shape[1] // 3}"
        )
    return Space(method, loaded.chain, size)


def parse_size(method: str) -> int | None:
    """Return the size that a method cuts its stored chain to, or None for all dimensions.

    Raises:
        DataError: if the size is no number.
    """
    size = method.partition(":")[2]
    if not size or is_fitted_here(method):
        return None
    if not size.isdecimal():
        raise DataError(f"{method}: what follows the colon of a chain is a size")
    return int(size)


def seed_steps(steps: str, seed: int) -> list[Transform]:
    """Parse steps, and set the seed of those that take one and have the default."""
    specs = [step.spec() for step in parse_steps(steps)]
    return build_steps([spec | ({"seed": seed} if spec.get("seed") == 0 else {}) for spec in specs])


def load_space(method: str, folder: Path, size: int | None) -> Space:
    """Load the chain that `Space.save` stored."""
    return Space(method, Chain.load(folder) if folder.exists() else None, size)
