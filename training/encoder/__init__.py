"""Encoders: loading a model, what identifies it, and texts to vectors in batches."""
