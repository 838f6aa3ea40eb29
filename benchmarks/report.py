"""The report that every measurement writes: the command, the machine in words, the date, the figures."""

import argparse
import json
import os
import platform
import re
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that all measurements share."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--quick", action="store_true", help="a small run that shows it works; not for quoting")
    options.add_argument("--out", type=Path, default=Path("build/bench"), help="folder for the raw JSON")
    return options


def describe_machine() -> str:
    """Describe the machine in words."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].partition(":")[2].strip() if lines else model
    return f"{os.cpu_count()} cores of {model}, {platform.system()}, Python {platform.python_version()}"


def write_report(out: Path, name: str, figures: Any) -> Path:
    """Write figures as raw JSON, with the command, the machine, the libraries and the date.

    Returns:
        The path of the file.
    """
    module = sys.modules["__main__"].__spec__
    arguments = [re.sub(r"(?<![\w:/])/[^\s>]*/", "", argument) for argument in sys.argv[1:]]  # no absolute folders
    report = {
        "command": " ".join(["python -m", module.name.removesuffix(".__main__") if module else name, *arguments]),
        "machine": describe_machine(),
        "libraries": {p: version(p) for p in ("torch", "numpy", "sentence-transformers", "lathe-service")},
        "date": datetime.now(UTC).date().isoformat(),
        "figures": figures,
    }
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    return path


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
