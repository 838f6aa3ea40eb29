"""The dashboard's files, read once and served from memory."""

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
        content: bytes of the file.
        media_type: value of the header `content-type`.
        etag: hash of the content, in quotes; a browser that has this content is not sent it again.
    """

    content: bytes
    media_type: str
    etag: str

    def matches(self, if_none_match: str) -> bool:
        """Return whether the header `if-none-match`, a list of strong or weak tags or a star, names this content."""
        tags = (tag.strip().removeprefix("W/") for tag in if_none_match.split(","))
        return any(tag in ("*", self.etag) for tag in tags)


@cache
def read_assets() -> dict[str, Asset]:
    """Read all files of the dashboard and return them by name; cached, as they are some hundred kilobytes."""
    assets = {}
    for file in (files("lathe.service.dashboard") / "static").iterdir():
        content = file.read_bytes()
        media_type = MEDIA_TYPES[PurePath(file.name).suffix]
        assets[file.name] = Asset(content, media_type, f'"{sha256(content).hexdigest()[:32]}"')
    return assets
