"""What `pip` is while a block runs: it installs nothing, and refuses an extra that Lathe does not have."""

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def unknown_extras(words: list[str]) -> list[str]:
    """Return the extras of `lathe[A,B]` and `.[A,B]` that pyproject.toml does not define."""
    known = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    named = [re.fullmatch(r"(?:lathe|\.)\[([\w,-]+)\]", word) for word in words]
    return [extra for match in named if match for extra in match[1].split(",") if extra not in known]


if __name__ == "__main__":
    if missing := unknown_extras(sys.argv[1:]):
        sys.exit(f"Lathe has no extra {', '.join(missing)}")
