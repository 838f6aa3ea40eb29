"""How well a chain keeps the geometry of the vectors: metrics, diagnostics, certificate."""

from lathe.transforms.quality.certificate import Certificate, certify, compare_searches, measure_geometry
from lathe.transforms.quality.diagnostics import (
    UNIT_TOLERANCE,
    Diagnostics,
    centered_alignment,
    diagnose,
    uncentered_alignment,
)
from lathe.transforms.quality.metrics import (
    angular_stress,
    compare_neighbours,
    cross_recall_at_k,
    isoscore,
    local_spearman,
    local_spearman_per_row,
    pearson_compat,
    positional_stress,
    recall_at_k,
    recall_per_row,
    row_slices,
)

__all__ = [
    "Certificate",
    "Diagnostics",
    "UNIT_TOLERANCE",
    "row_slices",
    "angular_stress",
    "centered_alignment",
    "certify",
    "compare_neighbours",
    "compare_searches",
    "cross_recall_at_k",
    "diagnose",
    "measure_geometry",
    "isoscore",
    "local_spearman",
    "local_spearman_per_row",
    "pearson_compat",
    "positional_stress",
    "recall_at_k",
    "recall_per_row",
    "uncentered_alignment",
]
