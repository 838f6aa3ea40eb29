"""Transforms that are trained by gradient descent: GeoPres, autoencoder, flow."""
