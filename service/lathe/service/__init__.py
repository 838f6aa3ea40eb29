"""Serving: HTTP, registry, jobs and the `lathe` command."""
