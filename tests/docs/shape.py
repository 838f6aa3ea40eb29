"""Whether what was printed has the shape that a page shows: the same lines, and where it says so the same numbers."""

import re

NUMBER = r"[-+−]?(?:\d+(?:[.,]\d+)*|\.\d+)(?:e[-+]?\d+)?"
ONE_NUMBER = r"[-+−]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?"
"""As `NUMBER`, but with commas between thousands alone, so that a list is several numbers."""
HASH = r"(?<![\w.])(?=\d*[a-f])[0-9a-f]{12,}\b"
ELISION = "…"
SMALL = 0.1
"""A number nearer to zero may differ by a share of this, not of itself."""


def masked(text: str) -> list[str]:
    """Return the lines with `#` for numbers, hashes and lists of numbers, and without aligning spaces."""
    text = re.sub(NUMBER, "#", re.sub(HASH, "#", text))
    text = re.sub(r"#(?:,\s*#)*(?:,\s*…)?", "#", text)
    return compact_lines(text)


def compact_lines(text: str) -> list[str]:
    """Return the lines that are not blank, without optional JSON spaces, and with single spaces elsewhere."""
    return [compact(line) for line in text.splitlines() if line.strip()]


def compact(line: str) -> str:
    """Return a line without optional JSON spaces, and with single spaces elsewhere."""
    line = " ".join(line.split())
    return re.sub(r"\s*([,:{}\[\]])\s*", r"\1", line) if line.startswith(("{", "[")) else line


def missing(shown: str, printed: str, tolerance: float | None = None) -> list[str]:
    """Return the shown lines that were not printed in this order. `…` matches anything.

    Args:
        shown: what the page shows.
        printed: what was printed.
        tolerance: share of itself by which a printed number may differ from the shown one; None for any number.
    """
    if tolerance is None:
        rest, wanted = masked(printed), masked(shown)
    else:
        # A shown line that begins with spaces goes on the one before it, as the page is narrower than the output.
        rest, wanted = compact_lines(printed), compact_lines(re.sub(r"\n +", " ", shown))
    lost = []
    for line in wanted:
        place = next((at for at, candidate in enumerate(rest) if matches(line, candidate, tolerance)), None)
        if place is None:
            lost.append(line)
        else:
            rest = rest[place + 1 :]
    return lost


def matches(line: str, candidate: str, tolerance: float | None) -> bool:
    """Return whether a printed line is the shown one. The arguments are as for `missing`, both compacted."""
    parts = (
        re.split(f"({HASH}|{ONE_NUMBER}|{ELISION})", line) if tolerance is not None else re.split(f"({ELISION})", line)
    )
    pattern, numbers = "", []
    for part in parts:
        if part == ELISION:
            pattern += ".*"
        elif tolerance is not None and re.fullmatch(HASH, part):
            pattern += HASH
        elif tolerance is not None and re.fullmatch(ONE_NUMBER, part):
            pattern += f"({ONE_NUMBER})"
            numbers.append(part)
        else:
            pattern += re.escape(part)

    found = re.fullmatch(pattern, candidate)
    return found is not None and all(
        abs(read_number(printed) - read_number(shown)) <= (tolerance or 0) * max(abs(read_number(shown)), SMALL)
        for shown, printed in zip(numbers, found.groups(), strict=True)
    )


def read_number(text: str) -> float:
    """Parse a number as pages write it: with commas between thousands, and with a minus sign of either kind."""
    return float(text.replace(",", "").replace("−", "-"))


def shown_by_comments(code: str) -> str:
    """Return what the comments behind the calls of `print` in Python code say that these print."""
    return "\n".join(re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE))
