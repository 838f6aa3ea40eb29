"""The `lathe` command; each file holds the commands of one matter."""

from service.cli.main import app

__all__ = ["app"]
