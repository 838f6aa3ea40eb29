"""Whether what Lathe says it needs is installed, in versions that will do; told by the packages' own metadata."""

from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement


@cache
def unmet(distribution: str, extra: str = "", version: Callable[[str], str] = version) -> tuple[str, ...]:
    """Return what a distribution needs and has not got, each as `torch>=2.9 (2.3.1 is installed)`.

    Args:
        distribution: by its name on the package index.
        extra: look at what this extra adds; empty looks at what is always needed.
        version: tells which version of a package is installed; raises `PackageNotFoundError` where none is.
    """
    found: list[str] = []
    for line in requires(distribution) or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if extra and (marker is None or marker.evaluate({"extra": ""})):
            continue  # always needed, so none of the extra's
        if marker is None or marker.evaluate({"extra": extra}):
            found += unmet_of(requirement, version)
    return tuple(dict.fromkeys(found))


def unmet_of(requirement: Requirement, version: Callable[[str], str]) -> list[str]:
    """Return why one requirement is not met; nothing if it is, its own extras included."""
    try:
        there = version(requirement.name)
    except PackageNotFoundError:
        return [f"{requirement.name}{requirement.specifier} (missing)"]
    if not requirement.specifier.contains(there, prereleases=True):
        return [f"{requirement.name}{requirement.specifier} ({there} is installed)"]
    return [problem for extra in sorted(requirement.extras) for problem in unmet(requirement.name, extra, version)]
