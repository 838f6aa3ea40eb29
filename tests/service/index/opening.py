"""Opening of indexes in this process, as the tests of single indexes and of their folders need it."""

from contextlib import contextmanager

from lathe.service.index.embedded.index import EmbeddedIndex
from lathe.service.index.embedded.indexes import EmbeddedIndexes, acquire_index


@contextmanager
def opened(folder, snapshot=True, exact_rows=None):
    """Open an index for a block, and close it with or without a snapshot."""
    index = EmbeddedIndex("x", folder, acquire_index(folder, "x"), 1, 1, lambda spec, texts: None, exact_rows)
    try:
        yield index
    finally:
        index.close(snapshot=snapshot)


@contextmanager
def serving(root):
    """Open the indexes of a folder for a block."""
    indexes = EmbeddedIndexes(root, 1, 1, lambda spec, texts: None)
    try:
        yield indexes
    finally:
        indexes.close()
