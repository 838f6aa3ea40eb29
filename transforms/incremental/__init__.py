"""Adding rows to a fitted chain from stored moments."""
