"""Query-aware reduction: two projections, of queries and of documents, that keep their inner products best."""

import numpy as np
import torch
from torch import Tensor

from lathe.transforms.base import FitContext, Map, Signature, require_between, require_whole
from lathe.transforms.linear.affine import Affine
from lathe.transforms.linear.linear import Linear
from lathe.transforms.statistics import Moments, Spectrum, moments_of, query_metric_roots
from lathe.transforms.vectors import Vectors


class LeanVec(Linear):
    """Bx for documents and Aq for queries, `(n, d)` to `(n, k)`, so that ⟨Aq, Bx⟩ is closest to ⟨q, x⟩.

    LeanVec-Sphering (GleanVec, arXiv 2410.22347), the closed form of LeanVec-OOD (arXiv 2312.16335): of all A and B
    with k rows, B = PM_λ^½ and A = PM_λ^−½ minimize the mean of (⟨q, x⟩ − ⟨Aq, Bx⟩)² over queries and documents, with
    M_λ = (1 − λ)·I + λ·M/(tr M/d), M = E[qqᵀ] and λ = 1, and P the top k eigenvectors of M_λ^½ E[xxᵀ] M_λ^½ as rows.
    The paper has λ = 1 only; λ = 0 is the uncentred PCA, and what is between keeps directions that few of the queries
    have. Without queries the fitted rows stand for them, and with λ = 1 scores are those of the uncentred PCA.

    Every prefix of an output is the optimum of that many dimensions. Scores are inner products: outputs of documents
    have different norms, and a chain that normalizes them ranks by another score.

    Args:
        dimensions: k.
        weighting: λ, from 0 (all directions count alike) to 1 (by queries alone).

    Attributes:
        weight: B, `(k, d)`.
        query_weight: A, `(k, d)`.
        query_count: number of queries that M was measured on; 0 if the fitted rows stood for them.
    """

    kind = "leanvec"
    learns_from = "moments"
    takes_queries = True
    two_sided = True
    keeps_inner_products = True
    nested = True
    chooses_axes = True

    def __init__(self, dimensions: int, weighting: float = 1.0) -> None:
        super().__init__()
        self.dimensions = dimensions
        self.weighting = weighting
        self.query_weight: Tensor
        self.query_count: Tensor
        self.register_buffer("query_weight", torch.empty(0))
        self.register_buffer("query_count", torch.empty(0, dtype=torch.int64))

    def check_parameters(self) -> None:
        """Raise `StepError` unless `dimensions` is a positive integer and `weighting` a number from 0 to 1."""
        require_whole(self.kind, "dimensions", self.dimensions, at_least=1)
        require_between(self.kind, "weighting", self.weighting, 0, 1)

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the input signature reduced to `dimensions` dimensions.

        Raises:
            StepError: if the inputs have fewer dimensions.
        """
        return inputs.reduce(self.kind, self.dimensions)

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Set both weights from the uncentred second moments of rows and queries, in float64.

        Raises:
            InputError: if queries have other dimensions than the rows, or the rows fewer directions than `dimensions`.
        """
        moments = moments_of(data)
        queries = context.query_moments(moments.dimensions)
        root, inverse_root = query_metric_roots(moments if queries is None else queries, self.weighting)
        noise = moments.rounding_variance() * float(np.linalg.eigvalsh(root)[-1]) ** 2
        spectrum = Spectrum.of(root @ moments.second_moment() @ root, noise)
        if self.dimensions < moments.dimensions:  # a full rotation leaves nothing to chance
            spectrum.require_rank(self.kind, self.dimensions, moments.count)
        axes = spectrum.directions[: self.dimensions]
        self.set_map(torch.from_numpy(axes @ root))
        self.query_weight = torch.from_numpy(axes @ inverse_root).float()
        self.query_count = torch.tensor([0 if queries is None else queries.count])

    @property
    def weighted_by_queries(self) -> bool:
        """Whether example queries weighted the fit; False if the fitted rows stood for them."""
        return bool(self.query_count.any())

    def query_map(self) -> Map:
        """Return q ↦ Aq as an `Affine`."""
        return Affine(self.query_weight)
