"""Transforms that are trained by gradient descent: GeoPres, autoencoder, flow, query adapter, residual MLP."""

from transforms.learned.autoencoder import Autoencoder
from transforms.learned.flow import Flow
from transforms.learned.geopres import GeoPres
from transforms.learned.query_adapter import QueryAdapter
from transforms.learned.residual_mlp import ResidualMLP

__all__ = ["Autoencoder", "Flow", "GeoPres", "QueryAdapter", "ResidualMLP"]
