"""A fitted chain on disk, with the statistics that are stored beside it.

Names are imported when first used, as `__init__.pyi` says: reading a manifest needs no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
