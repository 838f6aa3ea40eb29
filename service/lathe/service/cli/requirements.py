"""Requirements of installed packages that are not met, by the packages' own metadata."""

from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

DISTRIBUTIONS = ("lathe-transforms", "lathe-training", "lathe-service")
"""Names of Lathe's distributions on the package index."""


@cache
def find_unmet(distribution: str, extra: str = "", version: Callable[[str], str] = version) -> tuple[str, ...]:
    """Return the requirements of a distribution that are not met, each as `torch>=2.9 (2.3.1 is installed)`.

    Args:
        distribution: name on the package index.
        extra: checks the requirements that this extra adds; empty checks those without extras.
        version: returns the installed version of a package, or raises `PackageNotFoundError`.
    """
    problems: list[str] = []
    for line in requires(distribution) or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if extra and (marker is None or marker.evaluate({"extra": ""})):
            continue  # required without the extra too
        if marker is None or marker.evaluate({"extra": extra}):
            problems += _check_requirement(requirement, version)
    return tuple(dict.fromkeys(problems))


def find_unmet_of_lathe(version: Callable[[str], str] = version) -> tuple[str, ...]:
    """Return the requirements of all of Lathe's distributions that are not met, without those of extras."""
    problems = [problem for name in DISTRIBUTIONS for problem in find_unmet(name, version=version)]
    return tuple(dict.fromkeys(problems))


def find_unmet_of_extra(extra: str, version: Callable[[str], str] = version) -> list[str]:
    """Return the requirements that an extra adds and that are not met; `extra` is written as `lathe-service[redis]`."""
    return _check_requirement(Requirement(extra), version)


def _check_requirement(requirement: Requirement, version: Callable[[str], str]) -> list[str]:
    """Return why a requirement, or one of the extras it names, is not met; empty if all are."""
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        return [f"{requirement.name}{requirement.specifier} (missing)"]
    if not requirement.specifier.contains(installed, prereleases=True):
        return [f"{requirement.name}{requirement.specifier} ({installed} is installed)"]
    return [problem for extra in sorted(requirement.extras) for problem in find_unmet(requirement.name, extra, version)]
