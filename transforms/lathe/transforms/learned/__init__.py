"""Transforms that are trained by gradient descent: GeoPres and the query adapter."""

from lathe.transforms.learned.geopres import GeoPres
from lathe.transforms.learned.query_adapter import QueryAdapter

__all__ = ["GeoPres", "QueryAdapter"]
