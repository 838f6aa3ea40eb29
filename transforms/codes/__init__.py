"""Transforms that store a vector in fewer bits per dimension."""
