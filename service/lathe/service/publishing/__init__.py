"""Chains of transforms and trained encoders, from a request to the registered version: for commands and jobs."""
