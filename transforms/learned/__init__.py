"""Transforms that are trained by gradient descent: GeoPres, autoencoder, flow, query adapter."""

from transforms.learned.autoencoder import Autoencoder
from transforms.learned.flow import Flow
from transforms.learned.geopres import GeoPres
from transforms.learned.query_adapter import QueryAdapter

__all__ = ["Autoencoder", "Flow", "GeoPres", "QueryAdapter"]
