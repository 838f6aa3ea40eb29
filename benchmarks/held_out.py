"""The data sets and corpora that are held out, and the check that a measurement does not tune on them."""

from pathlib import Path

import orjson

LIST = Path(__file__).with_name("held_out.json")
"""File that lists them."""


def read_held_out() -> set[str]:
    """Return the paths below the data folder that are set aside, such as `finance/tatqa`."""
    listed = orjson.loads(LIST.read_bytes())
    return {*listed["data_sets"], *listed["corpora"]}


def require_not_held_out(paths: list[str]) -> None:
    """Raise `ValueError` if one of the paths, relative to the data folder, is set aside."""
    if found := sorted(set(paths) & read_held_out()):
        raise ValueError(f"{', '.join(found)}: set aside in {LIST.name}, nothing may be tuned on it")
