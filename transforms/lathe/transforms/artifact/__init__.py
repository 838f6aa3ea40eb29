"""Saved chains on disk, with the distribution of the fitted rows that is stored with them.

Names are imported on first access, as listed in `__init__.pyi`: reading a manifest needs no torch.
"""

from lathe.transforms.lazy import load_lazily

__getattr__, __dir__, __all__ = load_lazily(__name__, __file__)
