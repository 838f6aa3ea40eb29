"""Codes against variants of themselves: `python -m research.codes.defaults`, `python -m research.codes.weightings`."""
