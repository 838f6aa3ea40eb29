"""Jobs of a single server, each in a process of its own, with its state on disk."""
