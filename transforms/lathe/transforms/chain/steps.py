"""Parsing of steps as users write them: `r2,geopres:96` on a command line, a list of objects in JSON."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lathe.transforms.base import TRANSFORMS, Spec, Transform, build_transform, parameter_names
from lathe.transforms.errors import StepError
from lathe.transforms.files import parse_json

PARAMETER = re.compile(r"^[A-Za-z_][A-Za-z_0-9]*=")
"""Start of a parameter, `key=`."""

MAX_STEPS = 64
"""Maximum number of steps in a chain; useful chains have a handful, and each step costs a product for every vector."""

OPENING, CLOSING = "[{(", "]})"
"""Brackets between which a comma does not separate steps."""


def parse_steps(text: str) -> list[Transform]:
    """Parse the steps of a chain from text such as `r2,geopres:96` into unfitted transforms. Unknown kinds raise.

    A step is `kind`, `kind:value` (the value of its first parameter, `dimensions` for most) or
    `kind:key=value,key=value`; steps are joined by commas. A step may also be written as a JSON object, all of them as
    a JSON list, and a value may be any JSON. An object of two lists, `{"query": […], "document": […]}`, has other steps
    for queries than for documents: `r2,geopres:128,nested=true` or `r2,{"kind": "geopres", "dimensions": 128, "nested":
    true}`.

    Raises:
        StepError: if the text cannot be parsed, names an unknown kind or parameter, or is empty.

    Example:
        >>> from lathe.transforms import parse_steps
        >>> [step.spec() for step in parse_steps("r2,pca:32,center=none")]
        [{'kind': 'r2'}, {'kind': 'pca', 'dimensions': 32, 'center': 'none'}]
    """
    specs: list[Spec] = []
    # A JSON list is the steps themselves, as in an artifact's manifest.
    if text.lstrip().startswith("["):
        return build_steps(_parse_json(text))

    # An object without `kind` is not a step: it has a list of steps for queries, and one for documents.
    parsed = _parse_value(text) if text.lstrip().startswith("{") else None
    if isinstance(parsed, dict) and parsed and "kind" not in parsed:
        return build_steps(parsed)

    for part in _split_top_level(text):
        # Commas separate parameters as well as steps: a part such as `nested=true` belongs to the step before it.
        if PARAMETER.match(part):
            if not specs:
                raise StepError(f"the parameter {part!r} stands before any step")
            parameter = _parse_parameter(part)
            if repeated := parameter.keys() & specs[-1].keys():
                raise StepError(f"{specs[-1]['kind']} is given {', '.join(repeated)} twice")
            specs[-1] |= parameter
        else:
            specs.append(_parse_step(part))

    return build_steps(specs)


def build_steps(specs: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> list[Transform]:
    """Build the steps of a chain from specs, as transforms that are not fitted yet. Unknown kinds or none raise.

    Args:
        specs: list of dicts with `kind` and parameters, or `{"query": […], "document": […]}` with one such
            list for queries and one for documents.

    Raises:
        StepError: for an unknown kind or parameter, for no steps at all, for more than `MAX_STEPS`, or if one of the
            two lists is missing.

    Example:
        >>> from lathe.transforms import build_steps
        >>> build_steps([{"kind": "pca", "dimensions": 32}])
        [PCA(dimensions=32, not fitted)]
    """
    if isinstance(specs, Mapping) and "kind" not in specs:
        specs = [_join_sides(specs)]

    if isinstance(specs, str | Mapping) or not isinstance(specs, Sequence):
        raise StepError(f"steps are a list of objects such as {{'kind': 'r2'}}, got {specs!r}")
    if len(specs) > MAX_STEPS:
        raise StepError(f"a chain has at most {MAX_STEPS} steps, these are {len(specs)}")
    if not specs:
        raise StepError("a chain needs at least one step, such as r2 or geopres:128")

    return [build_transform(spec) for spec in specs]


def _join_sides(sides: Mapping[str, Any]) -> Spec:
    """Return the spec of one step, of kind `sides`, from a dict with lists of steps for queries and for documents.

    Both lists must be there, and one may be empty: a list that was forgotten must not pass for an empty one.

    Raises:
        StepError: for other keys.
    """
    if set(sides) != {"query", "document"}:
        raise StepError(
            "steps with two sides have exactly query and document, [] for a side that stays as it is, not "
            f"{', '.join(map(str, sides)) or 'none'}"
        )
    return {"kind": "sides", **sides}


def _split_top_level(text: str) -> list[str]:
    """Split text at the commas outside of brackets and quotes, without empty parts. An open bracket or quote raises.

    The parts are stripped of white space.

    Raises:
        StepError: if a bracket or quote is not closed.
    """
    parts, depth, quoted, start = [], 0, False, 0
    for position, character in enumerate(text):
        # A slice, because at position 0 the index −1 would mean the last character.
        if character == '"' and text[position - 1 : position] != "\\":
            quoted = not quoted
        elif not quoted and character in OPENING:
            depth += 1
        elif not quoted and character in CLOSING:
            depth -= 1
        elif character == "," and depth == 0 and not quoted:
            parts.append(text[start:position].strip())
            start = position + 1

    parts.append(text[start:].strip())
    if depth != 0 or quoted:
        raise StepError(f"a bracket or quote is not closed in the steps {text!r}")

    return [part for part in parts if part]


def _parse_step(part: str) -> Spec:
    """Parse one step, such as `geopres`, `geopres:96`, `geopres:dimensions=96` or a JSON object, into its spec."""
    if part.startswith("{"):
        return dict(_parse_json(part))  # a part that begins with a brace is an object or no JSON

    kind, _, argument = (piece.strip() for piece in part.partition(":"))
    if not argument:
        return {"kind": kind}
    if PARAMETER.match(argument):
        return {"kind": kind} | _parse_parameter(argument)

    return {"kind": kind, _find_main_parameter(kind): _parse_value(argument)}


def _find_main_parameter(kind: str) -> str:
    """Return the parameter that `kind:value` sets, `dimensions` for an unknown kind. A kind without parameters raises.

    It is the first parameter of the kind's class. `build_steps` reports an unknown kind later.

    Raises:
        StepError: if the kind has no parameters.
    """
    if kind not in TRANSFORMS:
        return "dimensions"  # the unknown kind is reported later
    names = parameter_names(TRANSFORMS[kind])
    if not names:
        raise StepError(f"{kind} takes no parameter: write {kind} alone")
    return names[0]


def _parse_json(text: str) -> Any:
    """Parse JSON text.

    Raises:
        StepError: if the text is not valid JSON.
    """
    try:
        return parse_json(text)
    except ValueError as error:
        raise StepError(f"the step {text!r} is not JSON: {error}") from error


def _parse_parameter(part: str) -> Spec:
    """Parse `key=value` into the dict `{key: value}`, with the value as JSON if it is valid JSON, else as a string.

    Raises:
        StepError: if the key is `kind`, which names a step.
    """
    key, _, value = part.partition("=")
    if key == "kind":
        raise StepError(f"write {value!r} as a step of its own, not as the parameter {part!r}")
    return {key: _parse_value(value)}


def _parse_value(text: str) -> Any:
    """Return the value of JSON text, or the text itself if it is not JSON."""
    try:
        return parse_json(text)
    except ValueError:
        return text
