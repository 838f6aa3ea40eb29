"""Where the names of the package come from: `__init__` reads this, and so do type checkers."""

from .abtt import ABTT
from .alignment import LowRankAffine, Procrustes
from .autoencoder import Autoencoder
from .catalogue import TRANSFORMS
from .certificate import certify
from .chain import Chain
from .debias import R1, R2, MeanCentering, RandomDirection
from .diagnostics import diagnose
from .errors import ArtifactError, InputError, NotFittedError, StepError, TransformError
from .flow import Flow
from .geopres import GeoPres
from .metrics import (
    angular_stress,
    isoscore,
    local_spearman,
    pearson_compat,
    positional_stress,
    recall_at_k,
)
from .moments import Moments
from .normalize import Normalize
from .paired import PairedMoments
from .pca import PCA
from .projection import RandomProjection, RandomSelection, Truncation
from .quantization import Binary, Int8
from .steps import build_steps, parse_steps
from .transform import Transform
from .whitening import Whitening

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
