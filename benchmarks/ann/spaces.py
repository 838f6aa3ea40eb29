"""What vectors are reduced to, and how."""

from pathlib import Path

import numpy as np

from benchmarks.ann.data import DataError, Vectors
from lathe.service.home import Home
from lathe.service.registries import open_registry
from lathe.service.settings import read_settings
from lathe.transforms import Chain, Transform, build_steps, parse_steps
from lathe.transforms.base import TRANSFORMS
from lathe.transforms.linear import Affine

FULL = "none"
"""The method that leaves vectors as they are."""


class Space:
    """A method, ready to reduce.

    Args:
        method: as it was asked for.
        chain: None leaves vectors as they are.
        size: to cut a nested chain to.

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
        self.of_queries = chain[:-1].fold(size) if chain is not None and codes else self.folded
        self.product = product_of(self.of_queries)

    def reduce(self, vectors: Vectors) -> Vectors:
        """Vectors `(n, d)` to `(n, k)`; where the chain makes codes, what those stand for."""
        if self.folded is None:
            return vectors
        return np.ascontiguousarray(self.folded.floats(vectors), np.float32)

    def ask(self, queries: Vectors) -> Vectors:
        """Queries `(q, d)` to `(q, k)`, never as codes: nobody stores them, and codes are compared with floats.

        By one NumPy product where the chain folds into one, as a program would that searches in its own memory.
        """
        if self.of_queries is None:
            return queries
        if self.product is None:
            return np.asarray(self.of_queries.floats(queries), np.float32)
        weight, bias, normalize = self.product
        reduced = queries @ weight
        if bias is not None:
            reduced += bias
        if normalize:
            reduced /= np.sqrt(np.einsum("ij,ij->i", reduced, reduced))[:, None]
        return reduced

    def save(self, folder: Path) -> None:
        """Keep the chain for the processes that search."""
        if self.chain is not None:
            self.chain.save(folder)


Product = tuple[Vectors, Vectors | None, bool]
"""A weight `(d, k)`, a bias `(k,)`, and whether outputs are normalised."""


def product_of(folded: Chain | None) -> Product | None:
    """The product that a folded chain is; None if it is more than that."""
    if folded is None or len(folded.transforms) != 1 or not isinstance(folded.transforms[0], Affine):
        return None
    affine = folded.transforms[0]
    bias = None if affine.bias is None else affine.bias.numpy()
    return np.ascontiguousarray(affine.weight.numpy().T), bias, affine.normalize


def is_fitted_here(method: str) -> bool:
    """Whether a method is steps to fit, not a chain there is."""
    return method != FULL and method.replace("=", ":").partition(":")[0].partition(",")[0] in TRANSFORMS


def find_space(method: str, fit: Vectors, seed: int) -> Space:
    """The space of a method: `none`, a chain as `NAME[@VERSION][:SIZE]`, or steps such as `geopres:128`.

    Args:
        method: as above.
        fit: `(f, d)` to fit steps on.
        seed: for steps that take one.

    Raises:
        DataError: for a chain that does not take these vectors.
    """
    if method == FULL:
        return Space(method, None)
    if is_fitted_here(method):
        return Space(method, Chain(seeded(method, seed)).fit(fit))
    name, size = method.partition(":")[0], size_of(method)
    registry = open_registry(Home(read_settings().home))
    loaded = registry.load(name)
    if loaded.chain.input_dimensions not in (None, fit.shape[1]):
        raise DataError(
            f"the chain {name} takes vectors {loaded.chain.input_dimensions} wide, these are {fit.shape[1]}: "
            f"name another with --method, or steps that are fitted here, such as geopres:{fit.shape[1] // 3}"
        )
    return Space(method, loaded.chain, size)


def size_of(method: str) -> int | None:
    """The size a chain there is is cut to; None for all of it."""
    size = method.partition(":")[2]
    if not size or is_fitted_here(method):
        return None
    if not size.isdecimal():
        raise DataError(f"{method}: what follows the colon of a chain is a size")
    return int(size)


def seeded(steps: str, seed: int) -> list[Transform]:
    """Unfitted steps, with a seed where they take one and were given none."""
    specs = [step.spec() for step in parse_steps(steps)]
    return build_steps([spec | ({"seed": seed} if spec.get("seed") == 0 else {}) for spec in specs])


def load_space(method: str, folder: Path, size: int | None) -> Space:
    """What `Space.save` kept."""
    return Space(method, Chain.load(folder) if folder.exists() else None, size)
