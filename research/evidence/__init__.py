"""The papers' headline claims, measured on encoders of five families: `python -m research.evidence`."""
