"""Transforms that are trained by gradient descent: GeoPres, autoencoder, flow."""

from transforms.learned.autoencoder import Autoencoder
from transforms.learned.flow import Flow
from transforms.learned.geopres import GeoPres

__all__ = ["Autoencoder", "Flow", "GeoPres"]
