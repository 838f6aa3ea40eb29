"""Measurements; not packaged. Each is `python -m benchmarks.NAME --help`."""
