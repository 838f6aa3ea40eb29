"""Probabilities that hits are right: weights that ship, and how well they carry over to other data and encoders."""
