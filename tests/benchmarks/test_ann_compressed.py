import json
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.ann.data import find_nearest
from benchmarks.ann.engines import make_engine
from benchmarks.ann.point import compute_overlap

FAISS_NAMES = ["hnsw-byte16", "hnsw-pca16-8bit", "hnsw-pca16-4bit", "hnsw-codes8", "hnsw-rabitq2"]


@pytest.mark.parametrize(("name", "least"), list(zip(FAISS_NAMES, [0.95, 0.95, 0.9, 0.95, 0.95], strict=True)))
def test_candidates_of_a_graph_over_codes_hold_the_true_neighbours(name, least, unit):
    engine = make_engine(name, 400, 8, 100, 0)
    engine.build(unit)
    engine.set_effort(200)
    found = engine.search(unit[:50], 40)
    assert found.shape == (50, 40) and found.dtype == np.int64
    assert compute_overlap(found, find_nearest(unit[:50], unit, 10)).mean() > least
    links = 400 * 4 * 2 * 8
    assert links < engine.bytes < links + unit.nbytes


@pytest.mark.release
def test_the_comparison_writes_sizes_memory_and_times_beside_the_reference(clusters, tmp_path):
    rows = clusters(1200, 32)
    np.save(tmp_path / "vectors.npy", rows / np.linalg.norm(rows, axis=1, keepdims=True))
    command = [sys.executable, "-m", "benchmarks.ann.candidates", "--vectors", str(tmp_path / "vectors.npy")]
    command += ["--query-count", "200", "--out", str(tmp_path), "hnsw-byte16:8"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [line.split(" | ")[0] for line in ended.stdout.splitlines()[2:]] == ["| hnswlib:16", "| hnsw-byte16:8"]
    found = json.loads((tmp_path / "ann-codes.json").read_bytes())["figures"]["engines"]
    full, coded = found["hnswlib:16"], found["hnsw-byte16:8"]
    assert coded["bytes"] < 0.6 * full["bytes"]
    assert coded["build_cpu_seconds"] > 0 and {"read_seconds", "mapped_seconds"} <= set(coded)
    for setting in coded["settings"]:
        assert setting["single"] > 0 and setting["p50"] <= setting["p99"] and 0 < setting["recall"] <= 1
