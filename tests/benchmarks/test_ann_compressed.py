import json
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.ann import disk
from benchmarks.ann.candidates import view_as_index
from benchmarks.ann.data import find_nearest
from benchmarks.ann.engines import make_engine
from benchmarks.ann.point import compute_overlap
from lathe.service.index.embedded.exact import rescore

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


@pytest.mark.parametrize("metric", [0, 1])
def test_a_view_of_mapped_originals_ranks_candidates_as_lathe_does(metric, unit, tmp_path):
    import faiss

    unit.astype(np.float16).tofile(tmp_path / "originals.f16")
    originals = np.memmap(tmp_path / "originals.f16", np.float16, "c", shape=unit.shape)
    rough = faiss.index_factory(32, "SQ4", metric)
    rough.train(unit)
    rough.add(unit)
    store = view_as_index(originals, metric)
    refined = faiss.IndexRefine(rough, store)
    refined.k_factor = 4
    candidates = rough.search(unit[:20], 40)[1]
    ranked, _ = rescore(unit[:20], originals, candidates, 10, "l2" if metric else "ip")
    assert (refined.search(unit[:20], 10)[1] == ranked).mean() > 0.97  # nearly equal scores may change places
    assert not store.codes.is_owned
    del refined, store
    originals[:] = 0  # a copy on write: the file stays
    assert np.fromfile(tmp_path / "originals.f16", np.float16).any()


def test_searches_with_originals_on_the_disk_find_what_those_in_memory_find(unit, tmp_path, monkeypatch):
    np.save(tmp_path / "base.npy", unit)
    np.save(tmp_path / "queries.npy", unit[:50])
    np.save(tmp_path / "truth.npy", find_nearest(unit[:50], unit, 10))
    unit.astype(np.float16).tofile(tmp_path / "originals.f16")
    monkeypatch.setattr(disk, "QUERIES", 50)
    lathe = disk.LatheOnDisk(tmp_path, 8)
    found = [lathe.search(200, 100, cold) for cold in (True, False)]
    assert found[0]["recall"] == found[1]["recall"] > 0.95
    assert all(0 < one["p50"] <= one["p99"] for one in found)


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
