"""Fits on queries that hold personal data: what must hold of them, and what certificates say.

Encoded queries and pairs exist in the memory of the fit alone. What outlives it are matrices that were learned from
moments or by training on many queries, and measures averaged over them. For fits that are marked, this also holds of
messages, which else quote a query, and of the stored answers of embeddings APIs, which the fit then does without.
"""

from typing import Any

import numpy as np

from training.errors import FitError
from training.fitting.fit_request import FitRequest
from transforms.vectors import FloatArray

MIN_QUERIES = 100
"""Minimum number of different queries: moments of a few show what these were."""

KEPT = "learned matrices and averages; no texts, and no vectors of single queries"
"""What outlives a fit on personal data, for certificates."""

FIELDS = ("queries", "pairs", "test_pairs")
"""Fields of a fit that name files of queries."""


def list_query_files(request: FitRequest) -> list[str]:
    """Return the names of the fields that name files of queries."""
    return [field for field in FIELDS if getattr(request, field) is not None]


def require_query_files(request: FitRequest) -> None:
    """Raise `FitError` if personal data are marked and there are no queries that could hold them."""
    if request.personal_data and not list_query_files(request):
        raise FitError("personal data are marked, and there are none: the mark is for queries, pairs and test pairs")


def require_many_queries(request: FitRequest, queries: FloatArray | None) -> None:
    """Raise `FitError` if personal data are marked and fewer than `MIN_QUERIES` of the queries `(m, d)` differ."""
    if not request.personal_data or queries is None:
        return
    if (distinct := len(np.unique(queries, axis=0))) < MIN_QUERIES:
        raise FitError(
            f"queries with personal data must be at least {MIN_QUERIES} different ones, these are {distinct}: moments "
            "of so few, which the steps learn from, show what they were"
        )


def describe_personal_data(request: FitRequest) -> dict[str, Any]:
    """Return the certificate's entry `personal_data`: the marked fields and what is kept of them; empty if unmarked."""
    if not request.personal_data:
        return {}
    return {"personal_data": {"fields": list_query_files(request), "kept": KEPT}}
