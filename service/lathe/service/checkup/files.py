"""Files of vectors, with texts or without, as a checkup reads them."""

import numpy as np

from lathe.service.errors import BadValueError
from lathe.training.checkup.store import Cures, Hits, Rows, Store, compare_all
from lathe.training.settings import Metric
from lathe.training.sources.source import open_source
from lathe.transforms.vectors import FloatArray


class FileStore(Store):
    """Rows of a source of vectors, searched by comparing all that were read.

    Args:
        source: source of vectors.
        texts: source of their texts, in the same order; None for none.
        metric: metric of the searches.

    Raises:
        SourceError: if a source cannot be read.
        BadValueError: if the source holds texts, or the texts are not as many as the vectors.
    """

    def __init__(self, source: str, texts: str | None, metric: Metric) -> None:
        self.name, self.metric, self.cures = source, metric, Cures("lathe embed")
        self.source, self.texts = open_source(source), None if texts is None else open_source(texts)
        if self.source.kind() != "vectors":
            raise BadValueError(f"{source} holds texts: a checkup takes stored vectors", param="source")
        self.total = self.source.count()
        if self.texts is not None and (count := self.texts.count()) != self.total:
            raise BadValueError(f"{self.total:,} vectors and {count:,} texts do not match", param="texts")

    def read(self, max_rows: int) -> Rows:
        """Return up to `max_rows` rows drawn at random, with row numbers from 0 as ids.

        No others are kept in memory.

        Raises:
            SourceError: if a source cannot be read.
        """
        chosen = np.random.default_rng(0).permutation(self.total)[:max_rows]
        place = np.full(self.total, -1)
        place[chosen] = np.arange(len(chosen))
        vectors = np.empty((len(chosen), self.source.detect_kind() or 0), np.float32)
        start = 0
        for batch in self.source.batches(require_finite=False):  # NaN and inf are found by the checkup
            places = place[start : start + len(batch)]
            vectors[places[places >= 0]] = np.asarray(batch.values)[places >= 0]
            start += len(batch)

        texts: list[str | None] | None = None
        if self.texts is not None:
            texts = [None] * len(chosen)
            every = (text for batch in self.texts.batches() for text in batch.values)
            for position, text in zip(place, every, strict=True):
                if position >= 0:
                    texts[position] = str(text)
        self.rows = Rows([str(row) for row in chosen], vectors, texts, self.total)
        return self.rows

    def search_exactly(self, queries: FloatArray, k: int, full: bool = False) -> Hits:
        """Compare each query with all rows that were read."""
        valid = np.flatnonzero(self.rows.is_valid)
        ids = [self.rows.ids[row] for row in valid]
        return compare_all(ids, self.rows.vectors[valid], queries, self.metric, k)
