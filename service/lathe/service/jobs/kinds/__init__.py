"""Kinds of jobs: fits, advice and reindexing."""
