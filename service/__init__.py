"""Serving: HTTP, registry, jobs and the `lathe` command."""

from service.app import create_app
from service.settings import Settings

__all__ = ["Settings", "create_app"]
