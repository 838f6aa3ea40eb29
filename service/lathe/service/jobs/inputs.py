"""Names of the input files that come with jobs' requests.

Input files are deleted when the job ends.
"""

from lathe.transforms.artifact import MANIFEST, TENSORS

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
