"""What `pip` is while a block runs: it installs nothing, and refuses what Lathe's distributions do not have."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.distributions import list_extras, read_projects  # noqa: E402


def find_mistakes(words: list[str]) -> list[str]:
    """Return the distributions and extras with the word lathe that pip would install and that are not ours."""
    mistakes = []
    for word in words:
        match = re.fullmatch(r"(?:\./)?([\w./-]*lathe[\w.-]*)(?:\[([\w,-]+)\])?", word)
        if match is None or "/" in match[1]:
            continue
        name, extras = match[1], (match[2] or "").split(",")
        if name not in read_projects():
            mistakes.append(name)
        mistakes += [f"{name}[{extra}]" for extra in extras if extra and f"{name}[{extra}]" not in list_extras()]
    return mistakes


if __name__ == "__main__":
    if mistakes := find_mistakes(sys.argv[1:]):
        sys.exit(f"Lathe has no {', '.join(mistakes)}")
