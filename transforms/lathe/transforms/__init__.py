"""The mathematics of Lathe: transforms fitted to embedding vectors, and measures of what they lose.

The package knows nothing of HTTP, jobs and models.

Names are imported on first access, as listed in `__init__.pyi`: code that only catches errors or reads a manifest does
not wait seconds for torch.
"""

from lathe.transforms.lazy import load_lazily

__getattr__, __dir__, __all__ = load_lazily(__name__, __file__)
