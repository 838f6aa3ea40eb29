"""Transforms that are affine maps: normalization, debiasing, PCA, whitening, rotation, alignment, truncation."""

from lathe.transforms.linear.affine import Affine, Linear, Normalize
from lathe.transforms.linear.alignment import LowRankAffine, Procrustes
from lathe.transforms.linear.debias import ABTT, MIN_MEAN_NORM, R2
from lathe.transforms.linear.itq import ITQ
from lathe.transforms.linear.pca import PCA
from lathe.transforms.linear.selection import Selection, Truncation
from lathe.transforms.linear.whitening import Whitening

__all__ = [
    "ABTT",
    "Affine",
    "ITQ",
    "Linear",
    "LowRankAffine",
    "MIN_MEAN_NORM",
    "Normalize",
    "PCA",
    "Procrustes",
    "R2",
    "Selection",
    "Truncation",
    "Whitening",
]
