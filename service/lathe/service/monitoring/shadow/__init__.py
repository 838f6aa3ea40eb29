"""Shadows: a second version of a chain that is compared with the live one on live vectors."""
