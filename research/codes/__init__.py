"""Codes against variants of themselves: `python -m research.codes.trials`, `python -m research.codes.weightings`."""
