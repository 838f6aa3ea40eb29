"""Local jobs: a process for each, its state on disk."""
