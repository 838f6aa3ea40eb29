"""Settings of the regularizers, the section `regularizer` of a job."""

from typing import Annotated, Literal

from pydantic import Field

from lathe.training.settings import NotNegative, StrictSettings


class RegularizerSettings(StrictSettings):
    """Settings of REZE's regulariser, with the paper's defaults.

    Attributes:
        loss_weight: α of Eq. 10.
        target: `debiased` for REZE; `reference` for the unchanged relations, which is plain distillation.
        strength: η of Eq. 6, the fraction by which a source's mean is moved towards the band around the centre.
        scale: γ of Eqs. 4 and 5, which scales the threshold and the band.
        variance_ratio: ρ of Eq. 3, the share of variance that the active dimensions explain.
        center: centre of the source means; `median` averages the two middle ones of an even count, `mean` is the
            ablation.
        denominator: denominator of Eq. 6. `literal` is |μ| + ε, as printed, which depends on the arbitrary sign of an
            eigenvector; `signed` is sgn(μ)(|μ| + ε), which does not.
        operation: `scale` multiplies a source's coordinates, as the paper does; `translate` shifts them by the shift of
            the source's mean, and leaves the spread within the source.
        contrast: embeddings that InfoNCE compares. `plain` takes them as they are; `debiased` subtracts the offset of
            the source's reference mean from the centre in the variant dimensions, so that negatives of other sources
            cannot be told by their source alone. `debiased` is our addition, not the paper's.
        clip: whether to clip factors to [0, 1].
        epsilon_denominator: ε of Eq. 6.
        epsilon_threshold: ε of Eq. 4, which should be small compared with the dispersions (1e-6 for unit vectors).
    """

    loss_weight: NotNegative = 1.0
    target: Literal["debiased", "reference"] = "debiased"
    strength: NotNegative = 0.7
    scale: NotNegative = 1.0
    variance_ratio: Annotated[float, Field(gt=0, le=1)] = 0.99
    center: Literal["median", "mean"] = "median"
    denominator: Literal["signed", "literal"] = "signed"
    operation: Literal["scale", "translate"] = "scale"
    contrast: Literal["plain", "debiased"] = "plain"
    clip: bool = True
    epsilon_denominator: NotNegative = 1e-8
    epsilon_threshold: NotNegative = 1e-8
