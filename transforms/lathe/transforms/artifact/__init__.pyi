"""What others may use of the package; `__init__` reads this, and so do type checkers."""

from .fit_distribution import FitDistribution, vector_norms
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

__all__ = [
    "DISTRIBUTION",
    "FitDistribution",
    "MANIFEST",
    "Manifest",
    "TENSORS",
    "display_name",
    "read_artifact",
    "read_file",
    "read_manifest",
    "read_serialized_artifact",
    "require_field_types",
    "vector_norms",
    "write_artifact",
]
