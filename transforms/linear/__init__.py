"""Transforms that are affine maps: normalization, debiasing, PCA, whitening, alignment, projection."""
