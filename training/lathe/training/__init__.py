"""Offline work on embeddings: encode texts, fit and certify chains, advise, evaluate, export, train encoders.

A notebook needs the names below; they are imported on first access, as listed in `__init__.pyi`. The folders hold the
parts that the server and the command `lathe` are built of.
"""

from lathe.transforms.lazy import load_lazily

__getattr__, __dir__, __all__ = load_lazily(__name__, __file__)
