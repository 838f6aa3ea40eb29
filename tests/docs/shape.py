"""Whether what was printed has the shape that a page shows: the same lines, whatever their numbers."""

import re

NUMBER = r"[-+]?(?:\d+(?:[.,]\d+)*|\.\d+)(?:e[-+]?\d+)?"
HASH = r"(?<![\w.])(?=\d*[a-f])[0-9a-f]{12,}\b"
ELISION = "…"


def masked(text: str) -> list[str]:
    """Return the lines with `#` for numbers, hashes and lists of numbers, and without aligning spaces."""
    text = re.sub(NUMBER, "#", re.sub(HASH, "#", text))
    text = re.sub(r"#(?:,\s*#)*(?:,\s*…)?", "#", text)
    return [compact(line) for line in text.splitlines() if line.strip()]


def compact(line: str) -> str:
    """Return a line without optional JSON spaces, and with single spaces elsewhere."""
    line = " ".join(line.split())
    return re.sub(r"\s*([,:{}\[\]])\s*", r"\1", line) if line.startswith(("{", "[")) else line


def missing(shown: str, printed: str) -> list[str]:
    """Return the shown lines that were not printed in this order. `…` matches anything."""
    rest, lost = masked(printed), []
    for line in masked(shown):
        pattern = re.compile(".*".join(re.escape(part) for part in line.split(ELISION)))
        place = next((at for at, candidate in enumerate(rest) if pattern.fullmatch(candidate)), None)
        if place is None:
            lost.append(line)
        else:
            rest = rest[place + 1 :]
    return lost
