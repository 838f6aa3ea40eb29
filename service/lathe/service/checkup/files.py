"""Files of vectors, with texts or without, as a checkup reads them."""

from dataclasses import dataclass

import numpy as np

from lathe.service.errors import BadValueError
from lathe.training.checkup.store import Hits, Metric, Rows, compare_all
from lathe.training.sources.source import open_source
from lathe.transforms.vectors import FloatArray


@dataclass
class FileStore:
    """Rows of a source of vectors, searched by comparing all that were read.

    Attributes:
        source: source of vectors.
        texts_source: source of their texts, in the same order; None for none.
        metric: metric of the searches.
    """

    source: str
    texts_source: str | None
    metric: Metric
    effort_name: str = ""
    efforts: tuple[int, ...] = ()
    quantizer: str | None = None

    @property
    def name(self) -> str:
        """Name of the store in sentences."""
        return self.source

    def read(self, max_rows: int) -> Rows:
        """Return up to `max_rows` rows drawn at random; ids are row numbers from 0.

        Raises:
            SourceError: if a source cannot be read.
            BadValueError: if the source holds texts, or the texts are not as many as the vectors.
        """
        source = open_source(self.source)
        if source.kind() != "vectors":
            raise BadValueError(f"{self.source} holds texts: a checkup takes stored vectors", param="source")
        vectors = np.concatenate([np.asarray(batch.values, np.float32) for batch in source.batches()])
        texts: list[str | None] | None = None
        if self.texts_source is not None:
            texts = [text for batch in open_source(self.texts_source).batches() for text in batch.values]
            if len(texts) != len(vectors):
                raise BadValueError(f"{len(vectors):,} vectors and {len(texts):,} texts do not match", param="texts")
        chosen = np.random.default_rng(0).permutation(len(vectors))[:max_rows]
        self.rows = Rows(
            [str(row) for row in chosen], vectors[chosen], texts and [texts[row] for row in chosen], len(vectors)
        )
        return self.rows

    def search(self, queries: FloatArray, k: int, effort: int | None = None) -> Hits:
        """Compare each query with all rows that were read."""
        valid = np.flatnonzero(self.rows.is_valid)
        ids = [self.rows.ids[row] for row in valid]
        return compare_all(ids, self.rows.vectors[valid], queries, self.metric, k)

    def search_exactly(self, queries: FloatArray, k: int, full: bool = False) -> Hits:
        """Compare each query with all rows that were read."""
        return self.search(queries, k)
