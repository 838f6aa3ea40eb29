import numpy as np
import pytest

from benchmarks.ann.data import find_nearest
from benchmarks.ann.engines import list_efforts, make_engine
from benchmarks.ann.point import choose_operating_point, compute_overlap


def setting(recall, microseconds):
    return {"recall": recall, "microseconds": microseconds}


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [(0.9, (0.95, 2.0)), (0.95, (0.95, 2.0)), (0.96, (0.99, 5.0)), (0.3, (0.4, 1.0)), (0.999, (0.99, 5.0))],
)
def test_operating_point_is_the_fastest_setting_with_enough_recall_or_that_of_highest_recall(wanted, chosen):
    settings = [setting(0.99, 6.0), setting(0.4, 1.0), setting(0.95, 2.0), setting(0.99, 5.0), setting(0.8, 3.0)]
    if wanted == 0.999:
        settings = settings[1:]
    assert tuple(choose_operating_point(settings, wanted).values()) == chosen


@pytest.mark.parametrize("name", ["hnswlib", "faiss-hnsw", "faiss-hnsw-sq8", "flat", "rabitq"])
def test_engine_finds_nearest_neighbours_and_reports_its_bytes(unit, name):
    engine = make_engine(name, 400, 16, 100, 0)
    engine.build(unit)
    engine.set_effort(max(list_efforts(name, (10, 200))))
    found = engine.search(unit[:50], 10)
    assert found.shape == (50, 10) and found.dtype == np.int64
    recall = compute_overlap(found, find_nearest(unit[:50], unit, 10)).mean()
    assert recall > (0.5 if name == "rabitq" else 0.97)
    least = {"rabitq": 400 * 4, "faiss-hnsw-sq8": unit.nbytes // 4}.get(name, unit.nbytes)
    assert least < engine.bytes < 4 * unit.nbytes
