"""Offline jobs: reading sources, loading encoders, encoding to disk, fitting and evaluating chains."""
