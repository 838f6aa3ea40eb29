"""Principal component analysis, in its three forms."""

from typing import Literal, get_args

import torch

from transforms.base.signature import Outline
from transforms.base.transform import Run
from transforms.base.validation import require_choice, require_whole
from transforms.linear.linear import Linear
from transforms.statistics.moments import Moments, moments_of
from transforms.statistics.spectrum import Spectrum
from transforms.vectors import Vectors

Center = Literal["data", "directions", "none"]


class PCA(Linear):
    """Project on the directions of largest variance; every prefix is the PCA of that size.

    - `center="data"`: (x − μ)Vᵀ, V the top eigenvectors of the centred covariance: what PCA is.
    - `center="none"`: xVᵀ, V the top eigenvectors of the uncentred second moment. Centring changes
      cosines; this keeps them better (MiniLM 384 → 96: local Spearman .940 against .871).
    - `center="directions"`: xVᵀ, V of the centred covariance but the vector not centred: the form
      of *Geometry-Preserving Dimensionality Reduction for Text Embeddings*, section 4.3.

    Without `dimensions` it only rotates, and can be undone exactly. Fitted on vectors as they are.
    """

    kind = "pca"
    learns_from = "moments"
    nested = True
    orthogonal_rows = True

    def __init__(self, dimensions: int | None = None, center: Center = "data") -> None:
        if dimensions is not None:
            require_whole(self.kind, "dimensions", dimensions, at_least=1)
        require_choice(self.kind, "center", center, get_args(Center))
        super().__init__(centered=center == "data")
        self.dimensions = dimensions
        self.center = center

    def after(self, before: Outline) -> Outline:
        """The size reduced to.

        Raises:
            StepError: if that is more than there is.
        """
        return before if self.dimensions is None else before.reduced(self.kind, self.dimensions)

    def learn(self, data: Moments | Vectors, run: Run) -> None:
        """Directions from the moments, float64.

        Raises:
            InputError: if fewer directions vary than are asked for.
        """
        moments = moments_of(data)
        matrix = moments.second_moment() if self.center == "none" else moments.covariance(ddof=0)
        spectrum = Spectrum.of(matrix, moments.rounding())
        kept = self.dimensions or moments.dimensions
        if kept < moments.dimensions:  # a whole rotation leaves nothing to chance
            spectrum.require(self.kind, kept, moments.count)
        mean = torch.from_numpy(moments.mean) if self.centered else None
        self.set_map(torch.from_numpy(spectrum.directions[:kept].copy()), mean)
