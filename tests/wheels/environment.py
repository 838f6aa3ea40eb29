"""An environment with the built wheels and the libraries that they require, and without the checkout."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.distributions import FOLDERS, ROOT, extras_of, read_projects

INSTALLED_EXTRAS = {"lathe-training": ("offline", "evaluation", "ray"), "lathe-service": ("redis",)}
"""Extras that the environment has."""


def build(out: Path) -> list[Path]:
    """Build the wheel of each distribution from its sdist, as an index gets them, and return the wheels."""
    for folder in FOLDERS:
        run(
            sys.executable, "-P", "-m", "hatchling", "build", "--target", "sdist", "--directory", out, cwd=ROOT / folder
        )
    pip = (sys.executable, "-P", "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-index")
    run(*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", out, *sorted(out.glob("*.tar.gz")), cwd=out)
    return sorted(out.glob("*.whl"))


def create_environment(folder: Path, wheels: list[Path]) -> Path:
    """Create a virtual environment with the wheels and links to the libraries they require, and return its `bin`.

    Libraries that no wheel requires are not in it, although they are installed here. To link them takes a second, to
    install them would take more than a minute.
    """
    run(sys.executable, "-P", "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    (libraries,) = (folder / "lib").glob("python3*/site-packages")
    for required in list_libraries():
        for name in {Path(file).parts[0] for file in required.files or ()} - {"..", "__pycache__"}:
            source = Path(str(required.locate_file(name)))
            if source.exists() and not (libraries / name).exists():
                (libraries / name).symlink_to(source)
    pip = (sys.executable, "-P", "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--no-deps", "--no-index", *wheels, cwd=folder)
    return folder / "bin"


def list_libraries() -> list[Distribution]:
    """Return all libraries that the distributions require with the extras of the environment, directly or not."""
    waiting: list[tuple[str, frozenset[str]]] = [
        (name, frozenset(INSTALLED_EXTRAS.get(name, ()))) for name in read_projects() if name.startswith("lathe-")
    ]
    seen: set[tuple[str, frozenset[str]]] = set()
    found: dict[str, Distribution] = {}
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen or name == "lathe-haystack":  # whose framework is not installed here
            continue
        seen.add((name, extras))
        for one in list_requirements(name, extras):
            waiting.append((canonicalize_name(one.name), frozenset(one.extras)))
        if name not in read_projects():
            found[name] = distribution(name)
    return list(found.values())


def list_requirements(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """Yield what a distribution requires with some of its extras: ours by pyproject.toml, others as installed."""
    table = read_projects().get(name)
    if table is not None:
        lines = [*table["dependencies"], *(line for extra in extras for line in extras_of(table)[extra])]
    else:
        lines = distribution(name).requires or []
    for line in lines:
        one = Requirement(line)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras or {""}):
            yield one


def run(*command: object, cwd: Path, **options: object) -> str:
    """Run a command to its end and return what it printed. Raise `AssertionError` with its output if it fails."""
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)
