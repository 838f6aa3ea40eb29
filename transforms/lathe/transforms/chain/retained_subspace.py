"""Parts of a chain: the subspace of inputs outside which nothing changes its outputs, and the maps of queries alone."""

from itertools import takewhile

import numpy as np

from lathe.transforms.chain.chain import Chain
from lathe.transforms.chain.folding import list_affine_maps
from lathe.transforms.statistics import Subspace
from lathe.transforms.vectors import as_float64


def retained_subspace(chain: Chain) -> Subspace | None:
    """Compute the subspace of the input space that a chain's outputs depend on, None if a step is not affine.

    It is the row space of the product of the chain's matrices. Normalizations change norms only and a quantizer keeps
    every direction, so both are ignored. The result is the subspace of the chain's full outputs, not of a prefix. A
    subspace of more than d/2 dimensions is stored as its orthogonal complement.

    Returns:
        The subspace, or None if the chain takes any number of dimensions, or has steps that are not affine.
    """
    d = chain.input_dimensions
    if d is None:
        return None

    product = np.eye(d)
    for step in chain.float_steps:
        parts = list_affine_maps(step)
        if parts is None:
            return None
        for part in parts:
            # A bias shifts all outputs alike, so it says nothing of the directions that are retained.
            product = as_float64(part.weight) @ product

    # NumPy's default `full_matrices=True` gives d directions: those after the rank span the complement.
    _, values, directions = np.linalg.svd(product)
    rank = int((values > d * np.finfo(np.float32).eps * values.max(initial=0)).sum())  # the maps are float32
    complement = d - rank < rank

    return Subspace((directions[rank:] if complement else directions[:rank]).astype(np.float32), complement)


def build_leading_query_maps(chain: Chain) -> Chain | None:
    """Build a chain of the steps at the start of `chain` that change queries only, as they map queries.

    Such maps change what is looked for. What follows approximates the scores of their outputs with the documents, so a
    search that rescores candidates by the documents' original vectors compares these outputs with them.

    Returns:
        The chain, or None if the first step changes documents too.
    """
    maps = [step.query_map() for step in takewhile(lambda step: step.queries_only, chain.float_steps)]
    return Chain(maps, normalize=False) if maps else None
