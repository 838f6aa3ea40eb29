"""Saved chains on disk, with the statistics of the fitted rows that are stored with them.

Names are imported on first access, as listed in `__init__.pyi`: reading a manifest needs no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
