"""Data sets of the Hugging Face hub in Lathe's layouts, read and checked like data sets in folders."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
from datasets import load_dataset

from training.datasets.layouts import READERS, Search, Tables
from training.datasets.records import Warnings
from training.errors import DataSetError
from training.evaluation.suites import Entry

FIELDS = {
    "reranking": ("query", "positive", "negative"),
    "classification": ("text", "label"),
    "clustering": ("text", "label"),
    "sts": ("sentence1", "sentence2", "score"),
    "pair_classification": ("sentence1", "sentence2", "label"),
    "pairs": ("anchor", "positive"),
    "translations": ("anchor", "positive"),
    "summarization": ("text", "human_summaries", "machine_summaries", "relevance"),
}
"""Columns of a data set by its task; data sets for retrieval have mteb's own layout instead."""
LISTS_OF_ROWS = ("clustering", "pair_classification", "sts", "classification")
"""Tasks whose older mteb data sets hold many rows in one row, as lists."""


def read_hub(entry: Entry, warnings: Warnings) -> Tables | Search:
    """Download a data set, or take it from the hub's cache, and return its validated content.

    Rows are written to temporary JSON-lines files and read by the reader of the task in `layouts.READERS`.

    Args:
        entry: data set of a suite.
        warnings: receives what is left out or looks wrong.

    Raises:
        DataSetError: if the data set cannot be loaded, lacks a column, or its content is invalid.
    """
    with TemporaryDirectory() as folder:
        splits = {"test": entry.split} | ({"train": "train"} if entry.task == "classification" else {})
        for ours, theirs in splits.items():
            with (Path(folder) / f"{ours}.jsonl").open("wb") as file:
                file.writelines(orjson.dumps(row) + b"\n" for row in rows_of(entry, theirs))
        return READERS[entry.task](Path(folder), warnings)


def rows_of(entry: Entry, split: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a split with Lathe's column names; a row of lists is split into its rows.

    Raises:
        DataSetError: if the data set cannot be loaded, or lacks a column.
    """
    names = {ours: dict(entry.columns).get(ours, ours) for ours in FIELDS[entry.task]}
    try:
        rows = load_dataset(entry.place, revision=entry.revision or None, split=split)
    except Exception as error:  # the hub's client raises anything: no network, no such set, no rights
        raise DataSetError(f"{entry.place}, split {split}, cannot be loaded: {error}") from error
    missing = [theirs for theirs in names.values() if theirs not in rows.column_names]
    if missing:
        raise DataSetError(f"{entry.place} has no column {missing[0]!r}; it has {', '.join(rows.column_names)}")
    for row in rows:
        found = {ours: row[theirs] for ours, theirs in names.items()}
        if entry.task in LISTS_OF_ROWS and all(isinstance(value, list) for value in found.values()):
            yield from (dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True))
        else:
            yield found
