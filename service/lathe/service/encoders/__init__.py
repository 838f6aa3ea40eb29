"""Encoders, hosted in processes of their own, and the cache and chains that their vectors go through."""
