"""The dashboard's files, as they are sent."""

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import PurePath

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class Asset:
    """A file of the dashboard.

    Attributes:
        content: its bytes.
        media_type: for the header `content-type`.
        etag: a hash of the content, in quotes: browsers ask again each time, and are sent only what changed.
    """

    content: bytes
    media_type: str
    etag: str

    def is_known(self, if_none_match: str) -> bool:
        """Whether a browser has it, by the header `if-none-match`: a list of tags, weak or not, or a star."""
        tags = (tag.strip().removeprefix("W/") for tag in if_none_match.split(","))
        return any(tag in ("*", self.etag) for tag in tags)


@cache
def assets() -> dict[str, Asset]:
    """Every file by its name; read once, they are some hundred kilobytes."""
    found = {}
    for file in (files("service.dashboard") / "static").iterdir():
        content = file.read_bytes()
        media_type = MEDIA_TYPES[PurePath(file.name).suffix]
        found[file.name] = Asset(content, media_type, f'"{sha256(content).hexdigest()[:32]}"')
    return found
