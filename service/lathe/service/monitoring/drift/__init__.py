"""Drift: whether live vectors still look like those that a chain was fitted on."""
