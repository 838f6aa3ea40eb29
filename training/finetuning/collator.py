"""Rows of a batch as the model reads them, those without hard negatives beside those with some."""

from typing import Any

from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator

NEGATIVES = "negative"
"""The column of lists of texts."""


class TripletCollator(SentenceTransformerDataCollator):
    """The library's, which reads a column of texts, and one that reads lists: all texts of a batch, row after row.

    A batch in which no row has a negative has no such column.
    """

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Tokens of each column, under its name."""
        rows = [{name: value for name, value in row.items() if name != NEGATIVES} for row in features]
        batch: dict[str, Any] = super().__call__(rows)
        if texts := [text for row in features for text in row.get(NEGATIVES) or ()]:
            batch |= {f"{NEGATIVES}_{name}": value for name, value in self.preprocess_fn(texts).items()}
        return batch
