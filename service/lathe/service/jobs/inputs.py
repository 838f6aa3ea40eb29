"""Names of the input files that come with jobs' requests.

Input files are deleted when the job ends.
"""

from collections.abc import Collection
from pathlib import Path
from typing import TypeVar

from lathe.training.fitting.requests import FitRequest
from lathe.training.sources.local import RootedFile
from lathe.transforms.artifact import MANIFEST, TENSORS

AnyFit = TypeVar("AnyFit", bound=FitRequest)

FILE_OF_TEXTS, FILE_OF_VECTORS, FILE_OF_TARGETS = "source.jsonl", "source.npy", "targets.npy"
FILE_OF_QUERY_TEXTS, FILE_OF_QUERIES = "queries.jsonl", "queries.npy"
FILE_OF_PAIRS, FILE_OF_TEST_PAIRS = "pairs.jsonl", "test_pairs.jsonl"
FILE_OF_NEW_TEXTS = "source.texts.json"
INPUT_NAMES = frozenset(
    {
        *(FILE_OF_TEXTS, FILE_OF_VECTORS, FILE_OF_TARGETS, FILE_OF_QUERY_TEXTS, FILE_OF_QUERIES),
        *(FILE_OF_PAIRS, FILE_OF_TEST_PAIRS, FILE_OF_NEW_TEXTS, MANIFEST, TENSORS),
    }
)
"""Names that input files of a job may have."""


def locate_inputs(request: AnyFit, files: Collection[str], folder: Path) -> AnyFit:
    """Return a copy of the fit in which paths of files sent with the request point into the job's folder.

    Args:
        request: the fit.
        files: names of the files that came with it.
        folder: the job's folder.
    """
    return request.with_paths(
        {field: str(RootedFile(folder, path)) for field, path in request.paths.items() if path in files}
    )
