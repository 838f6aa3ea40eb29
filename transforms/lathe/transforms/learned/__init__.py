"""Transforms that are trained by gradient descent: GeoPres, autoencoder, flow, query adapter."""

from lathe.transforms.learned.autoencoder import Autoencoder
from lathe.transforms.learned.flow import Flow
from lathe.transforms.learned.geopres import GeoPres
from lathe.transforms.learned.query_adapter import QueryAdapter

__all__ = ["Autoencoder", "Flow", "GeoPres", "QueryAdapter"]
