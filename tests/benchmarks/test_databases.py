"""The pages about vector databases quote the figures of the raw file."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.databases import QUERIES, Workload, load_workload, tabulate

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FIGURES = json.loads((ROOT / "benchmarks/results/databases.json").read_text())["figures"]


@pytest.mark.parametrize("database", ["pgvector", "lancedb", "milvus", "qdrant"])
def test_page_of_a_database_shows_the_table_of_its_figures(database):
    assert tabulate(FIGURES[database]["measured"]) in (DOCS / f"how-to/use-{database}.md").read_text()


@pytest.mark.parametrize(
    ("row", "database", "alone", "ranked"),
    [
        ("pgvector, `vector`", "pgvector", "reduced", "reduced, 40 ranked by full"),
        ("pgvector, `halfvec`", "pgvector", "reduced halfvec", "reduced halfvec, 40 ranked by full halfvec"),
        ("Qdrant", "qdrant", "reduced", "reduced, 40 ranked by full"),
        ("Milvus", "milvus", "reduced, HNSW", "reduced, HNSW_SQ, 40 ranked by full"),
        ("LanceDB", "lancedb", "reduced, IVF_HNSW_SQ", "reduced, IVF_HNSW_SQ, 40 ranked by full"),
    ],
)
def test_page_of_all_exports_quotes_recall_difference_and_bytes(row, database, alone, ranked):
    measured = {found["name"]: found for found in FIGURES[database]["measured"]}
    (line,) = [line for line in (DOCS / "exports.md").read_text().splitlines() if line.startswith(f"| {row}")]
    assert FIGURES[database]["version"] in line
    assert f"| {measured[alone]['difference']:.1g} |" in line
    assert f"| {measured[alone]['recall_at_10']:.3f}, {measured[ranked]['recall_at_10']:.3f} |" in line
    if "table_bytes" in measured[ranked]:
        table, index = (measured[ranked][part] / 1e6 for part in ("table_bytes", "index_bytes"))
        assert f"| {table:.1f} + {index:.1f} MB |" in line
    if "files_bytes" in measured[ranked]:
        assert f"| {measured[ranked]['files_bytes'] / 1e6:.1f} MB of files |" in line


def test_recall_counts_the_ten_nearest_by_the_full_vectors_after_ranking():
    rows = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    truth = np.argsort(-(rows[:3] @ rows.T), axis=1)[:, :10]
    load = Workload(rows, rows[:3], rows[:, :2], rows[:3, :2], truth)
    everything = [list(range(50))] * 3
    assert load.measure(load.rescore(everything)) == {"recall_at_10": 1.0, "ci": 0.0}
    assert load.measure([list(reversed(ids)) for ids in truth.tolist()])["recall_at_10"] == 1.0
    assert load.measure([ids[:5] + [99] * 5 for ids in truth.tolist()])["recall_at_10"] == 0.5


def test_a_file_of_too_few_rows_or_of_vectors_of_other_lengths_is_refused(tmp_path):
    rows = np.random.default_rng(0).normal(size=(QUERIES + 100, 8)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    with pytest.raises(ValueError, match="1,124 rows; 101 rows and 1,024 queries are needed"):
        load_workload(tmp_path / "rows.npy", 101, 10, "pca:4")
    with pytest.raises(ValueError, match="of another length than 1"):
        load_workload(tmp_path / "rows.npy", 100, 10, "pca:4")
    np.save(tmp_path / "rows.npy", rows / np.linalg.norm(rows, axis=1, keepdims=True))
    assert load_workload(tmp_path / "rows.npy", 100, 10, "pca:4").truth.shape == (10, 10)
