"""What others may use of the package; `__init__` reads this, and so do type checkers."""

from .fit_distribution import FitDistribution, vector_norms
from .fit_statistics import FitStatistics
from .folder import (
    DISTRIBUTION,
    MANIFEST,
    TENSORS,
    Manifest,
    display_name,
    read_artifact,
    read_file,
    read_manifest,
    read_serialized_artifact,
    require_field_types,
    write_artifact,
)
from .stored_moments import MOMENTS_PREFIX, load_moments

__all__ = [
    "DISTRIBUTION",
    "FitDistribution",
    "FitStatistics",
    "MANIFEST",
    "MOMENTS_PREFIX",
    "Manifest",
    "TENSORS",
    "display_name",
    "load_moments",
    "read_artifact",
    "read_file",
    "read_manifest",
    "read_serialized_artifact",
    "require_field_types",
    "vector_norms",
    "write_artifact",
]
