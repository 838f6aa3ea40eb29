"""Statistics of rows: norms, moments, spectra, subspaces and fitted Gaussians."""

from lathe.transforms.statistics.moments import (
    Moments,
    RowTransform,
    SharedVectors,
    at_unit_length,
    block_moments,
    dimensions_of,
    moments_of,
    unit_moments,
)
from lathe.transforms.statistics.norms import (
    MIN_ORDINARY_NORM,
    distances,
    drop_rounding_residue,
    norms_of,
    rounding_threshold,
    row_norms,
    unit_image,
    unit_rows,
    without_direction,
    zero_where_zero,
)
from lathe.transforms.statistics.paired_moments import PairedMoments, PairedRows
from lathe.transforms.statistics.spectrum import (
    RANK_TOLERANCE,
    Gaussian,
    Spectrum,
    Subspace,
    participation_ratio,
    query_metric_roots,
    tempered_power,
)

__all__ = [
    "Gaussian",
    "MIN_ORDINARY_NORM",
    "Moments",
    "RANK_TOLERANCE",
    "PairedMoments",
    "PairedRows",
    "RowTransform",
    "SharedVectors",
    "Spectrum",
    "Subspace",
    "at_unit_length",
    "block_moments",
    "dimensions_of",
    "distances",
    "drop_rounding_residue",
    "moments_of",
    "norms_of",
    "participation_ratio",
    "query_metric_roots",
    "rounding_threshold",
    "row_norms",
    "tempered_power",
    "unit_image",
    "unit_moments",
    "unit_rows",
    "without_direction",
    "zero_where_zero",
]
