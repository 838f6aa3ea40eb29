"""Files of a report, and what is known of the machine and the libraries that made it."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from lathe.transforms.files import replace_synced


def write_files(folder: Path, contents: Mapping[str, str | bytes | Mapping[str, Any]]) -> list[Path]:
    """Write files with the given contents, by name, into an existing folder, and return their paths. Older files are
    replaced atomically.

    Text is encoded as UTF-8, and a mapping is written as JSON.
    """
    for name, content in contents.items():
        if isinstance(content, Mapping):
            content = orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY)
        replace_synced(folder / name, content.encode() if isinstance(content, str) else content)
    return [folder / name for name in contents]


def describe_environment(*libraries: str) -> dict[str, Any]:
    """Return the versions of installed libraries, the number of cores and today's UTC date, for a JSON report.

    Raises:
        importlib.metadata.PackageNotFoundError: if a library is not installed.
    """
    return {
        "libraries": {name: version(name) for name in libraries},
        "cores": os.cpu_count(),
        "date": datetime.now(UTC).date().isoformat(),
    }
