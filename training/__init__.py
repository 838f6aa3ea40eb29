"""Offline work: loading encoders, reading sources, encoding to disk, fitting chains."""
