"""Transforms that are trained by gradient descent: GeoPres, the query adapter, contrastive alignment."""

from lathe.transforms.learned.contrastive_alignment import ContrastiveAlignment
from lathe.transforms.learned.geopres import GeoPres
from lathe.transforms.learned.query_adapter import QueryAdapter

__all__ = ["ContrastiveAlignment", "GeoPres", "QueryAdapter"]
