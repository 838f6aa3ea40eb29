"""The kinds of steps that ship with Lathe, by name alone: command lines list them without importing torch."""

KINDS = (
    "abtt",
    "autoencoder",
    "binary",
    "flow",
    "geopres",
    "int8",
    "low_rank_affine",
    "mc",
    "normalize",
    "pca",
    "procrustes",
    "r1",
    "r2",
    "rand",
    "random_projection",
    "random_selection",
    "truncation",
    "whitening",
)
"""The keys of `TRANSFORMS`; a test compares the two."""
