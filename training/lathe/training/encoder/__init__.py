"""Encoders: specification, loading, fingerprint, and batched encoding of texts to vectors."""
