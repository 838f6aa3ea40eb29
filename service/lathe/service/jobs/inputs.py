"""Names of the input files that come with jobs' requests.

Input files are deleted when the job ends.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol, Self, TypeVar

from lathe.training.sources.shards import RootedFile
from lathe.transforms.artifact import MANIFEST, TENSORS


class NamesPaths(Protocol):
    """A request that names files, some of which may have been sent with it."""

    @property
    def paths(self) -> dict[str, str]:
        """Paths by field."""

    def with_paths(self, paths: Mapping[str, str]) -> Self:
        """Return a copy of the request with other paths."""


AnyRequest = TypeVar("AnyRequest", bound=NamesPaths)

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


def locate_inputs(request: AnyRequest, files: Collection[str], folder: Path) -> AnyRequest:
    """Return a copy of a fit or adaptation in which paths of files sent with the request point into the job's folder.

    Args:
        request: the fit or adaptation.
        files: names of the files that came with it.
        folder: the job's folder.
    """
    return request.with_paths(
        {field: str(RootedFile(folder, path)) for field, path in request.paths.items() if path in files}
    )
