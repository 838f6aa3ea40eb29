"""The registry of transform classes by kind, and `build_transform`, which makes transforms from JSON."""

import importlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from lathe.transforms.base.map import parameter_names
from lathe.transforms.base.transform import Transform
from lathe.transforms.errors import StepError
from lathe.transforms.kinds import KINDS
from lathe.transforms.suggestions import find_similar, suggest


class Registry(Mapping[str, type[Transform]]):
    """Read-only mapping from kind to transform class: Lathe's own, and every subclass of `Transform` defined so far.

    Lathe's own classes are imported on first access.
    """

    def __getitem__(self, kind: str) -> type[Transform]:
        """Return the class of a kind, importing its module if needed.

        Raises:
            KeyError: for an unknown kind.
        """
        if kind not in Transform.defined and kind in KINDS:
            # The import alone fills `Transform.defined`: a subclass registers itself when it is defined.
            importlib.import_module(KINDS[kind])
        return Transform.defined[kind]

    def __iter__(self) -> Iterator[str]:
        """Yield all kinds in sorted order, importing nothing."""
        return iter(sorted({*KINDS, *Transform.defined}))

    def __len__(self) -> int:
        """Return the number of kinds."""
        return len({*KINDS, *Transform.defined})


TRANSFORMS = Registry()
"""The registry of all transform classes, by kind."""


def build_transform(spec: Mapping[str, Any]) -> Transform:
    """Build a transform, not fitted yet, from its spec, and check its parameters. A spec is such as `{"kind": "pca",
    "dimensions": 128}`.

    Raises:
        StepError: for an unknown kind or parameter, or a value out of range.
    """
    if not isinstance(spec, Mapping):
        raise StepError(f"a step is an object such as {{'kind': 'r2'}}, got {spec!r}")

    kind = spec.get("kind")
    if not isinstance(kind, str) or kind not in TRANSFORMS:
        raise StepError(f"unknown kind of step {kind!r}; {suggest(str(kind), TRANSFORMS)}")

    cls = TRANSFORMS[kind]
    known = parameter_names(cls)
    parameters = {name: value for name, value in spec.items() if name != "kind"}
    # Checked before the call, because the TypeError of `cls(**parameters)` does not say what a step takes.
    if unknown := sorted(set(parameters) - set(known)):
        similar = find_similar(unknown[0], known)
        takes = f"it takes {', '.join(known)}" if known else "it takes none"
        advice = f"did you mean {similar}? {takes.capitalize()}" if similar else takes
        raise StepError(f"{kind} has no parameter {', '.join(map(repr, unknown))}; {advice}")
    if missing := [name for name in _required_parameters(cls) if name not in parameters]:
        raise StepError(f"{kind} needs {', '.join(missing)}, as in {kind}:128")

    transform = cls(**parameters)
    transform.check_parameters()
    return transform


def _required_parameters(cls: type[Transform]) -> list[str]:
    parameters = inspect.signature(cls.__init__).parameters
    return [name for name in parameter_names(cls) if parameters[name].default is inspect.Parameter.empty]
