"""Encoders: hosted in processes of their own; their vectors are cached and go through chains."""
