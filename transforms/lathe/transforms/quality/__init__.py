"""How well a chain keeps the geometry of the vectors: metrics, diagnostics, certificate."""

from lathe.transforms.quality.certificate import (
    MIN_ROWS_PER_DIMENSION,
    Certificate,
    certify,
    compare_searches,
    geometry_measures,
    relevance_measures,
)
from lathe.transforms.quality.diagnostics import (
    UNIT_TOLERANCE,
    Diagnostics,
    centered_alignment,
    diagnose,
    uncentered_alignment,
)
from lathe.transforms.quality.metrics import (
    anchor_blocks,
    angular_stress,
    compare_neighbours,
    cross_recall_at_k,
    isoscore,
    local_spearman,
    local_spearman_of_anchors,
    pearson_compat,
    positional_stress,
    recall_at_k,
    recall_of_anchors,
)

__all__ = [
    "Certificate",
    "Diagnostics",
    "MIN_ROWS_PER_DIMENSION",
    "UNIT_TOLERANCE",
    "anchor_blocks",
    "angular_stress",
    "centered_alignment",
    "certify",
    "compare_neighbours",
    "compare_searches",
    "cross_recall_at_k",
    "diagnose",
    "geometry_measures",
    "isoscore",
    "local_spearman",
    "local_spearman_of_anchors",
    "pearson_compat",
    "positional_stress",
    "recall_at_k",
    "recall_of_anchors",
    "relevance_measures",
    "uncentered_alignment",
]
