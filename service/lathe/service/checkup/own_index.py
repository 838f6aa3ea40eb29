"""An index of this server as a checkup reads and searches it, in the process of a job.

The job reads rows from the index's record. The index's owner searches for it: see
`lathe.service.index.embedded.delegation`.
"""

from pathlib import Path

import numpy as np

from lathe.service.errors import ConflictError
from lathe.service.index.embedded.delegation import delegate
from lathe.service.index.embedded.generation import Generation
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.items import parse_metadata
from lathe.service.index.query import DEFAULT_EF, MANY_RESCORED, Query
from lathe.service.index.reducer import Reducer
from lathe.service.settings import Settings
from lathe.training.checkup.store import Cures, Hits, Rows, Store
from lathe.transforms.vectors import FloatArray

GRAPH_ROWS = 4096
"""Number of rows that are added at once to a graph that is built for comparison."""


class IndexStore(Store):
    """Items of an index, with their original vectors.

    Args:
        name: name of the index.
        root: folder of the index.
        job: folder of the job.
        settings: settings of the process.

    Raises:
        ConflictError: if the index stores no original vectors.
    """

    effort_name = "ef"
    efforts = tuple(DEFAULT_EF * multiple for multiple in (1, 2, 4, 8))

    def __init__(self, name: str, root: Path, job: Path, settings: Settings) -> None:
        self.name, self.job, self.settings = name, job, settings
        self.record = IndexRecord(root / "record.db", read_only=True)
        self.spec = self.record.spec
        if not self.spec.has_originals:
            raise ConflictError(f"the index {name} stores no original vectors, which a checkup reads")
        self.folder = root / f"graph-{self.spec.generation}"
        self.metric = self.spec.metric
        self.quantizer = None if self.spec.chain == "none" else f"The chain {self.spec.chain}"
        again = f"lathe index reindex {name}"
        self.cures = Cures(f"{again} --encode", again)
        self.rebuilt: Generation | None = None

    def read(self, max_rows: int) -> Rows:
        """Return up to `max_rows` items drawn at random."""
        sample = self.record.sample_labels(max_rows)
        payloads, originals = self.record.read_payloads(sample), self.record.read_originals(sample, self.spec)
        labels = [label for label in payloads if label in originals]  # others were deleted meanwhile
        labels = [labels[row] for row in np.random.default_rng(0).permutation(len(labels))]
        texts: list[str | None] | None = None
        if (text_field := self.spec.text_field) is not None:
            texts = [_find_text(*payloads[label], text_field) for label in labels]
        vectors = np.array([originals[label] for label in labels], np.float32).reshape(len(labels), self.spec.width)
        return Rows([payloads[label][0] for label in labels], vectors, texts, self.record.count_items()["count"])

    def search(self, queries: FloatArray, k: int, effort: int | None = None) -> Hits:
        """Search the graph, with another number of candidates if one is given."""
        return self._delegate(Query(queries, k, effort))

    def search_exactly(self, queries: FloatArray, k: int, full: bool = False) -> Hits:
        """Compare each query with all items through the chain, and with `full` rank the best by their originals."""
        return self._delegate(Query(queries, k, rescoring=MANY_RESCORED if full else None, exact=True))

    def search_rebuilt(self, queries: FloatArray, k: int) -> Hits:
        """Build the graph again from the items, in the folder of the job, and search it."""
        if self.rebuilt is None:
            reducer = Reducer(self.spec, self.record.read_artifact(self.spec.chain))
            self.rebuilt = Generation(self.job / "rebuilt", self.spec, self.record, reducer, self.settings.threads, 0)
            self.rebuilt.replay()
            while self.rebuilt.extend_graph(GRAPH_ROWS, self.settings.job_threads):
                pass
        labels, scores, _ = self.rebuilt.search(Query(queries, k))
        return self._name_hits(labels, scores, 0.0)

    def _delegate(self, query: Query) -> Hits:
        answers = delegate(self.folder, self.job.name, query)
        return self._name_hits(answers.labels, answers.scores, answers.seconds)

    def _name_hits(self, labels: np.ndarray, scores: np.ndarray, seconds: float) -> Hits:
        """Return hits `(q, k)` with the ids of items in place of labels. Items deleted meanwhile keep their label."""
        payloads = self.record.read_payloads({int(label) for label in labels.ravel()})
        names = {label: item for label, (item, _) in payloads.items()}
        ids = [[names.get(label, str(label)) for label in row if label >= 0] for row in labels.tolist()]
        sign = -1 if self.metric == "l2" else 1
        found = [sign * row[: len(hits)].astype(np.float64) for row, hits in zip(scores, ids, strict=True)]
        return Hits(ids, found, seconds)


def _find_text(item: str, metadata: bytes | None, text_field: str) -> str | None:
    text = parse_metadata(item, metadata).get(text_field) if metadata else None
    return text if isinstance(text, str) else None
