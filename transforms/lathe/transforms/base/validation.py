"""What is checked of a step: the parameters that users give it, and the tensors that are read from an artifact.

A transform lists a rule for each of its parameters in `parameter_rules`, the shapes of its buffers in `shapes` and
ranges of their entries in `entry_ranges`.
"""

from collections.abc import Callable
from typing import Any

MAX_WHOLE = 65_536
"""Default upper bound of integer parameters: above the dimensions of any encoder and any useful batch size."""

MAX_TRAINING_STEPS = 1_000_000
"""Maximum number of training steps: a thousand times as many as the presets have, some hours of work."""

MAX_SEED = 2**63 - 1
"""Largest seed that torch accepts."""

Shape = tuple[str | int, ...]
"""Shape of a tensor: each axis as its length, or as a name. Axes with one name have one length, of at least 1."""


ParameterRule = Callable[[Any], str | None]
"""Function that returns None for an allowed value, and otherwise what is allowed, such as "true or false"."""


def _rule(allowed: str, accepts: Callable[[Any], bool]) -> ParameterRule:
    """Return the rule that allows what `accepts` returns True for.

    `allowed` describes the allowed values in error messages.
    """
    return lambda value: None if accepts(value) else allowed


def whole_number(at_least: int, at_most: int = MAX_WHOLE) -> ParameterRule:
    """Return the rule that a parameter is an integer from `at_least` to `at_most`.

    A bool is not allowed.
    """
    # bool is a subclass of int: without the test for it, `true` in JSON would count as 1.
    return _rule(
        f"a whole number from {at_least} to {at_most}",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and at_least <= value <= at_most,
    )


def number(low: float, high: float) -> ParameterRule:
    """Return the rule that a parameter is an int or a float from `low` to `high`, both included.

    A bool and NaN are not allowed.
    """
    # NaN fails the comparison, as it fails every other.
    return _rule(f"a number from {low:g} to {high:g}", lambda value: _is_number(value) and low <= value <= high)


def one_of(*choices: str) -> ParameterRule:
    """Return the rule that a parameter is one of the strings `choices`."""
    return _rule(" or ".join(choices), lambda value: value in choices)


def or_word(word: str, rule: ParameterRule) -> ParameterRule:
    """Return a rule that allows one word as well as what `rule` allows.

    The message names the word for other strings only.
    """

    def check(value: Any) -> str | None:
        if not isinstance(value, str):
            return rule(value)
        return None if value == word else f"{word} or {rule(value)}"

    return check


def or_none(rule: ParameterRule) -> ParameterRule:
    """Return a rule that allows None as well as what `rule` allows.

    The message does not mention None.
    """
    return lambda value: None if value is None else rule(value)


FLAG = _rule("true or false", lambda value: isinstance(value, bool))
"""Rule of a parameter that is a bool."""

SEED = whole_number(0, MAX_SEED)
"""Rule of a random seed."""


def training_rules(min_steps: int = 1) -> dict[str, ParameterRule]:
    """Return the rules of the parameters `steps`, `batch`, `learning_rate` and `seed` of a trained transform, by name.

    All but the seed may be None, which stands for a default.

    Args:
        min_steps: smallest number of training steps allowed.
    """
    return {
        "steps": or_none(whole_number(min_steps, MAX_TRAINING_STEPS)),
        "batch": or_none(whole_number(2)),  # a loss over pairs of rows needs two
        "learning_rate": or_none(_rule("a number in (0, 1]", lambda value: _is_number(value) and 0 < value <= 1)),
        "seed": SEED,
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
