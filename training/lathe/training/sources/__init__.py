"""Sources of texts and vectors: local files and folders, object stores, and docstrings of the Python installation."""
