"""Where texts and vectors come from: files, folders, object stores, and docstrings of Python."""
