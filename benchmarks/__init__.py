"""Benchmarks of the product, each run as `python -m benchmarks.NAME --help`.

The package is not part of a distribution.
"""
