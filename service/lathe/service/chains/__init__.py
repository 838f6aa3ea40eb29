"""Chains: fitted, versioned, promoted by gates, and chosen by name or by number of dimensions."""
