"""Stores of vectors as a checkup reads and searches them."""
