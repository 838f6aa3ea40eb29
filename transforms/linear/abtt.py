"""All-but-the-Top: centring, and removing the directions of largest variance."""

import torch
from torch import Tensor

from transforms.base.signature import Outline
from transforms.base.transform import Inverse, Run, Transform
from transforms.base.validation import require_flag, require_whole
from transforms.errors import StepError
from transforms.linear.affine import Affine
from transforms.linear.linear import Back
from transforms.linear.normalize import Normalize, drop_rounding_residue, unit_image
from transforms.statistics.moments import Moments, moments_of
from transforms.statistics.spectrum import Spectrum
from transforms.vectors import Vectors


class ABTT(Transform):
    """ABTT-D: v − μ, off its top D centred principal directions, then renormalised.

    Mu and Viswanath, *All-but-the-Top* (2018); D is `directions`, by default d/100 and at least 1.
    By default y = ṽ − Σ(ṽ·uᵢ)uᵢ with ṽ = v − μ, as the text of the mean-bias paper says. With
    `literal`, y = ṽ − Σ(v·uᵢ)uᵢ as the algorithm is printed and as some public copies have it: it
    leaves a constant −Σ(μ·uᵢ)uᵢ in every vector. Fitted on vectors as they are.
    """

    kind = "abtt"
    learns_from = "moments"

    def __init__(self, directions: int | None = None, literal: bool = False, renormalize: bool = True) -> None:
        super().__init__()
        if directions is not None:
            require_whole(self.kind, "directions", directions, at_least=1)
        require_flag(self.kind, "literal", literal)
        require_flag(self.kind, "renormalize", renormalize)
        self.directions = directions
        self.literal = literal
        self.renormalize = renormalize
        self.mean: Tensor
        self.removed: Tensor
        self.register_buffer("mean", torch.empty(0))
        self.register_buffer("removed", torch.empty(0))

    def depth(self, width: int) -> int:
        """D for vectors of that width."""
        return self.directions or max(1, round(width / 100))

    def after(self, before: Outline) -> Outline:
        """D directions less; of the literal form's constant, renormalising makes one again.

        Raises:
            StepError: if nothing would be left.
        """
        kept = int(self.literal and self.renormalize)
        if before.width is None:
            return before.without((self.directions or 1) - kept)
        depth = self.depth(before.width)
        if depth >= before.width:
            raise StepError(f"abtt takes {depth} directions away; vectors {before.width} wide have no more")
        return before.without(depth - kept)

    def learn(self, data: Moments | Vectors, run: Run) -> None:
        """Mean and directions from the moments, float64, stored in float32.

        Raises:
            InputError: if fewer than D directions vary.
        """
        moments = moments_of(data)
        depth = self.depth(moments.dimensions)
        spectrum = Spectrum.of(moments.covariance(ddof=0), moments.rounding())
        spectrum.require(self.kind, depth, moments.count)
        self.mean = torch.from_numpy(moments.mean).float()
        self.removed = torch.from_numpy(spectrum.directions[:depth].copy()).float()

    def forward(self, x: Tensor) -> Tensor:
        """Debias rows, `(n, d)` to `(n, d)`; zero stays zero."""
        centred = x - self.mean
        y = centred - ((x if self.literal else centred) @ self.removed.T) @ self.removed
        return (unit_image if self.renormalize else drop_rounding_residue)(y, x)

    @property
    def inverse_kind(self) -> Inverse:
        """Approximate: the directions removed come back as the mean has them; none once lengths are lost."""
        return "none" if self.renormalize else "approximate"

    def inverse(self) -> Transform:
        """The mean added back."""
        return Back(None, self.mean)

    def primitives(self) -> list[Transform]:
        """The affine map, and a normalisation if there is one."""
        mean, removed = self.mean.double(), self.removed.double()
        projection = torch.eye(len(mean), dtype=torch.float64, device=mean.device) - removed.T @ removed
        affine = Affine(projection, -mean if self.literal else -(projection @ mean))
        return [affine, *([Normalize()] if self.renormalize else [])]
