"""Where the names of the package come from: `__init__` reads this, and so do type checkers."""

from .base.registry import TRANSFORMS
from .base.transform import Transform
from .chain.chain import Chain
from .chain.steps import build_steps, parse_steps
from .codes.quantization import Binary, Int8
from .errors import ArtifactError, InputError, NotFittedError, StepError, TransformError
from .learned.autoencoder import Autoencoder
from .learned.flow import Flow
from .learned.geopres import GeoPres
from .linear.abtt import ABTT
from .linear.alignment import LowRankAffine, Procrustes
from .linear.debias import R1, R2, MeanCentering, RandomDirection
from .linear.normalize import Normalize
from .linear.pca import PCA
from .linear.random_projection import RandomProjection
from .linear.selection import RandomSelection, Truncation
from .linear.whitening import Whitening
from .quality.certificate import certify
from .quality.diagnostics import diagnose
from .quality.metrics import (
    angular_stress,
    isoscore,
    local_spearman,
    pearson_compat,
    positional_stress,
    recall_at_k,
)
from .statistics.moments import Moments
from .statistics.paired_moments import PairedMoments

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
