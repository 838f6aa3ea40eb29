"""Transforms that are affine maps: normalization, debiasing, PCA, whitening, alignment, projection."""

from transforms.linear.abtt import ABTT
from transforms.linear.affine import Affine
from transforms.linear.alignment import LowRankAffine, Procrustes
from transforms.linear.debias import MIN_MEAN_NORM, R1, R2, MeanCentering, RandomDirection
from transforms.linear.leanvec import LeanVec
from transforms.linear.linear import Linear
from transforms.linear.normalize import Normalize
from transforms.linear.pca import PCA
from transforms.linear.random_projection import RandomProjection
from transforms.linear.selection import RandomSelection, Selection, Truncation
from transforms.linear.whitening import Whitening

__all__ = [
    "ABTT",
    "Affine",
    "LeanVec",
    "Linear",
    "LowRankAffine",
    "MIN_MEAN_NORM",
    "MeanCentering",
    "Normalize",
    "PCA",
    "Procrustes",
    "R1",
    "R2",
    "RandomDirection",
    "RandomProjection",
    "RandomSelection",
    "Selection",
    "Truncation",
    "Whitening",
]
