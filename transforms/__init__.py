"""The mathematics of Lathe: fitted maps on embedding vectors, and what they cost.

Knows no HTTP, no jobs and no models.
"""

from transforms.certificate import certify
from transforms.chain import Chain
from transforms.debias import R2
from transforms.errors import ArtifactError, InputError, NotFittedError, StepError, TransformError
from transforms.geopres import GeoPres
from transforms.metrics import isoscore, local_spearman, positional_stress, recall_at_k
from transforms.moments import Moments
from transforms.normalize import Normalize
from transforms.steps import build_steps, parse_steps
from transforms.transform import TRANSFORMS, Transform

__all__ = [
    "R2",
    "TRANSFORMS",
    "ArtifactError",
    "Chain",
    "GeoPres",
    "InputError",
    "Moments",
    "Normalize",
    "NotFittedError",
    "StepError",
    "Transform",
    "TransformError",
    "build_steps",
    "certify",
    "isoscore",
    "local_spearman",
    "parse_steps",
    "positional_stress",
    "recall_at_k",
]
