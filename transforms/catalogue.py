"""Every transform that ships with Lathe, imported so that `TRANSFORMS` has it.

A transform registers itself where its class is defined, which only helps if its module was imported. Whoever looks a
kind up imports this module first: `steps`, and through it `chain`. Plain imports, not a table of modules that are
imported by name, so that type checkers and import-linter see them; a chain needs torch anyway, and beside it these
modules cost little.
"""

from transforms.base.transform import TRANSFORMS
from transforms.codes import quantization  # noqa: F401
from transforms.learned import autoencoder, flow, geopres  # noqa: F401
from transforms.linear import abtt, alignment, debias, normalize, pca, projection, whitening  # noqa: F401

__all__ = ["TRANSFORMS"]
