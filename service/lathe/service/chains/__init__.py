"""Chains: their versions, the gates of promotion, and the choice of a chain by name or by number of dimensions."""
