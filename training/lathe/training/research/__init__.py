"""Reproductions of the papers' experiments; only the command line imports them, when they are run."""
