"""Where the names of the package come from: `__init__` reads this, and so do type checkers."""

from .base import TRANSFORMS, Transform
from .baselines import R1, Autoencoder, Flow, MeanCentering, RandomDirection, RandomProjection, RandomSelection
from .chain import Chain, build_steps, parse_steps
from .codes import Binary, Int8, ProductCoding, TransformCoding
from .errors import ArtifactError, InputError, NotFittedError, StepError, TransformError
from .learned import ContrastiveAlignment, GeoPres, QueryAdapter
from .linear import ABTT, ITQ, PCA, R2, LowRankAffine, Normalize, Procrustes, Truncation, Whitening
from .quality import (
    angular_stress,
    certify,
    diagnose,
    isoscore,
    local_spearman,
    pearson_compat,
    positional_stress,
    recall_at_k,
)
from .relevance import RelevanceModel, Searches, evaluate_probabilities
from .statistics import Moments, PairedMoments

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
    "ContrastiveAlignment",
    "Flow",
    "GeoPres",
    "InputError",
    "ITQ",
    "Int8",
    "LowRankAffine",
    "MeanCentering",
    "Moments",
    "Normalize",
    "NotFittedError",
    "PairedMoments",
    "Procrustes",
    "ProductCoding",
    "QueryAdapter",
    "RandomDirection",
    "RandomProjection",
    "RandomSelection",
    "RelevanceModel",
    "Searches",
    "StepError",
    "Transform",
    "TransformCoding",
    "TransformError",
    "Truncation",
    "Whitening",
    "angular_stress",
    "build_steps",
    "certify",
    "diagnose",
    "evaluate_probabilities",
    "isoscore",
    "local_spearman",
    "parse_steps",
    "pearson_compat",
    "positional_stress",
    "recall_at_k",
]
