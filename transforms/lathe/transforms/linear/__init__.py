"""Transforms that are affine maps: normalization, debiasing, PCA, whitening, alignment, projection."""

from lathe.transforms.linear.abtt import ABTT
from lathe.transforms.linear.affine import Affine
from lathe.transforms.linear.alignment import LowRankAffine, Procrustes
from lathe.transforms.linear.debias import MIN_MEAN_NORM, R1, R2, MeanCentering, RandomDirection
from lathe.transforms.linear.linear import Linear
from lathe.transforms.linear.normalize import Normalize
from lathe.transforms.linear.pca import PCA
from lathe.transforms.linear.random_projection import RandomProjection
from lathe.transforms.linear.selection import RandomSelection, Selection, Truncation
from lathe.transforms.linear.whitening import Whitening

__all__ = [
    "ABTT",
    "Affine",
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
