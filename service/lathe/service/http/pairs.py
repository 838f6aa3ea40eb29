"""Pairs of a query and a relevant document in requests, as files of jobs."""

from pathlib import Path

from lathe.service.errors import BadValueError
from lathe.service.jobs.inputs import FILE_OF_PAIRS, FILE_OF_TEST_PAIRS
from lathe.service.jobs.sources import resolve_allowed_path
from lathe.training.fitting.requests import Pairs
from lathe.training.journal import serialize_lines

PAIR_FILES = {"pairs": FILE_OF_PAIRS, "test_pairs": FILE_OF_TEST_PAIRS}
"""Name of the file in which pairs of a field go with the job."""


def require_pairs(*fields: Pairs | None) -> None:
    """Raise `BadValueError` if a list of pairs is empty. None stands for a field that was not sent."""
    if [] in fields:
        raise BadValueError("the list of pairs is empty", param="pairs")


def store_pairs(field: str, pairs: Pairs, files: dict[str, bytes], data_root: Path | None) -> str:
    """Return the path from which the job reads pairs. Pairs in the request are first added to `files`.

    Raises:
        ForbiddenError, UnknownNameError, BadValueError: as `resolve_allowed_path`, for a file.
    """
    if isinstance(pairs, str):
        return resolve_allowed_path(pairs, data_root, field)
    name = PAIR_FILES[field]
    files[name] = serialize_lines(pair.model_dump() for pair in pairs)
    return name
