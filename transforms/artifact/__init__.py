"""A fitted chain on disk, with the statistics that are stored beside it."""
