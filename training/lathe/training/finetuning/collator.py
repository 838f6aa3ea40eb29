"""Collation of batches in which only some rows have hard negatives."""

from typing import Any

from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator

NEGATIVES = "negative"
"""Name of the column that holds a list of hard negatives for each row."""


class TripletCollator(SentenceTransformerDataCollator):
    """The library's data collator, extended by a column of lists of texts: `negative`.

    The lists of all rows are concatenated, row after row, and tokenized like any other column. A batch in which no row
    has a negative has no such column.
    """

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Tokenize the rows; return each column's features as `{column}_{feature}`, and the labels."""
        rows = [{name: value for name, value in row.items() if name != NEGATIVES} for row in features]
        batch: dict[str, Any] = super().__call__(rows)
        if texts := [text for row in features for text in row.get(NEGATIVES) or ()]:
            batch |= {f"{NEGATIVES}_{name}": value for name, value in self.preprocess_fn(texts).items()}
        return batch
