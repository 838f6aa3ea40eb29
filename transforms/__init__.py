"""The mathematics of Lathe: fitted maps on embedding vectors, and what they cost.

Knows no HTTP, no jobs and no models.

Each name is imported when it is first asked for, as `__init__.pyi` says: whoever only catches the errors, or reads a
manifest, does not pay the seconds that torch takes.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
