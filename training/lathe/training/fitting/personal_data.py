"""Fits on queries that hold personal data: what is required of them, and what certificates say.

Encoded queries and pairs exist in the memory of the fit alone. What outlives it are matrices that were learned from
moments or by training on many queries, and measures averaged over them. If a request sets `personal_data`, error
messages do not quote queries either, and the fit neither reads nor writes the stored answers of embeddings APIs.
"""

from typing import Any

import numpy as np

from lathe.training.errors import FitError
from lathe.training.fitting.requests import NewFit
from lathe.transforms.vectors import FloatArray

MIN_QUERIES = 100
"""Minimum number of different queries, because moments of a few reveal the vectors of these."""

KEPT = "learned matrices and averages; no texts, and no vectors of single queries"
"""What outlives a fit on personal data, for certificates."""


def require_many_queries(request: NewFit, queries: FloatArray | None) -> None:
    """Check that queries `(m, d)` marked as personal data include at least `MIN_QUERIES` different ones. Raises
    `FitError` otherwise. None, for no queries, passes.
    """
    if not request.personal_data or queries is None:
        return
    if (distinct := len(np.unique(queries, axis=0))) < MIN_QUERIES:
        raise FitError(
            f"queries with personal data must be at least {MIN_QUERIES} different ones, these are {distinct}: moments "
            "of so few, which the steps learn from, show what they were"
        )


def describe_personal_data(request: NewFit) -> dict[str, Any]:
    """Return the certificate's entry `personal_data`: the fields with personal data and what is kept of them. The dict
    is empty if the request does not set `personal_data`.
    """
    if not request.personal_data:
        return {}
    return {"personal_data": {"fields": request.query_fields, "kept": KEPT}}
