"""The mathematics of Lathe: fitted maps on embedding vectors, and what they cost.

Knows no HTTP, no jobs and no models.
"""

from transforms.abtt import ABTT
from transforms.alignment import LowRankAffine, Procrustes
from transforms.autoencoder import Autoencoder
from transforms.certificate import certify
from transforms.chain import Chain
from transforms.debias import R1, R2, MeanCentering, RandomDirection
from transforms.diagnostics import diagnose
from transforms.errors import ArtifactError, InputError, NotFittedError, StepError, TransformError
from transforms.flow import Flow
from transforms.geopres import GeoPres
from transforms.metrics import (
    angular_stress,
    isoscore,
    local_spearman,
    pearson_compat,
    positional_stress,
    recall_at_k,
)
from transforms.moments import Moments
from transforms.normalize import Normalize
from transforms.paired import PairedMoments
from transforms.pca import PCA
from transforms.projection import RandomProjection, RandomSelection, Truncation
from transforms.quantization import Binary, Int8
from transforms.steps import build_steps, parse_steps
from transforms.transform import TRANSFORMS, Transform
from transforms.whitening import Whitening

__all__ = [
    "ABTT",
    "PCA",
    "R1",
    "R2",
    "TRANSFORMS",
    "ArtifactError",
    "Autoencoder",
    "Binary",
    "Chain",
    "Flow",
    "GeoPres",
    "InputError",
    "Int8",
    "LowRankAffine",
    "MeanCentering",
    "Moments",
    "Normalize",
    "NotFittedError",
    "PairedMoments",
    "Procrustes",
    "RandomDirection",
    "RandomProjection",
    "RandomSelection",
    "StepError",
    "Transform",
    "TransformError",
    "Truncation",
    "Whitening",
    "angular_stress",
    "build_steps",
    "certify",
    "diagnose",
    "isoscore",
    "local_spearman",
    "parse_steps",
    "pearson_compat",
    "positional_stress",
    "recall_at_k",
]
