"""Kinds of jobs: what a fit, an advice and a reindexing ask for and do."""
