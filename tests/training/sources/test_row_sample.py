import json
import tracemalloc

import numpy as np
import pytest

from lathe.training.errors import EmptyError, SourceError
from lathe.training.sources.row_sample import sample_rows
from lathe.training.sources.source import open_source


def source_of(path, texts):
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return open_source(str(path))


def test_sample_rows_depends_on_the_seed_and_not_on_the_order_or_repetition_of_rows(tmp_path):
    texts = [f"text {number}" for number in range(500)]
    forward = sample_rows(source_of(tmp_path / "a.jsonl", texts), 50)
    backward = sample_rows(source_of(tmp_path / "b.jsonl", texts[::-1] + texts), 50)
    assert forward.texts == backward.texts and len(set(forward.texts)) == 50
    assert backward.repeated == pytest.approx(0.5)
    assert set(sample_rows(open_source(str(tmp_path / "a.jsonl")), 50, seed=1).texts) != set(forward.texts)


def test_sample_rows_takes_texts_that_differ_only_in_spaces_and_case_once(tmp_path):
    sentences = [f"The number {number} is written here" for number in range(100)]
    variants = [(one, f"  {one}", one.replace(" ", "  "), one.upper()) for one in sentences]
    texts = [text for some in variants for text in some]
    row_sample = sample_rows(source_of(tmp_path / "a.jsonl", texts), 1000)
    assert len(row_sample) == 100 and row_sample.repeated == pytest.approx(3 / 4)
    assert sample_rows(source_of(tmp_path / "b.jsonl", texts[::-1]), 1000).texts == row_sample.texts


def test_sample_rows_samples_uniformly(tmp_path):
    source = source_of(tmp_path / "a.jsonl", [str(number) for number in range(100)])
    counts = np.zeros(100)
    for seed in range(200):
        counts[[int(text) for text in sample_rows(source, 20, seed).texts]] += 1
    assert 4 < counts.std() < 8  # of a binomial: √(200·.2·.8) = 5.7
    assert abs(counts[:50].sum() - counts[50:].sum()) < 300


def test_sample_rows_of_vectors_returns_source_rows(tmp_path):
    rows = np.arange(40, dtype=np.float32).reshape(20, 2)
    np.save(tmp_path / "v.npy", np.concatenate([rows, rows]))
    row_sample = sample_rows(open_source(str(tmp_path / "v.npy")), 10)
    assert row_sample.vectors.shape == (10, 2) and row_sample.texts == []
    assert {tuple(row) for row in row_sample.vectors} <= {tuple(row) for row in rows}


def test_sample_rows_takes_under_2_megabytes_for_100_of_50_000_vectors(tmp_path):
    np.save(tmp_path / "v.npy", np.random.default_rng(0).standard_normal((50_000, 32)).astype(np.float32))
    source = open_source(str(tmp_path / "v.npy"))
    sample_rows(source, 10)
    tracemalloc.start()
    row_sample = sample_rows(source, 100)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(row_sample) == 100 and peak < 2_000_000  # of 6.4 million bytes


def test_sample_rows_refuses_a_source_of_blank_texts_or_without_the_field(tmp_path):
    with pytest.raises(EmptyError, match="holds no rows"):
        sample_rows(source_of(tmp_path / "a.jsonl", [" ", "\t"]), 10)
    (tmp_path / "b.jsonl").write_text('{"other": 1}\n')
    with pytest.raises(SourceError, match="text"):
        sample_rows(open_source(str(tmp_path / "b.jsonl")), 10)
