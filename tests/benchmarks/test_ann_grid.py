import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchmarks.ann.data import Data
from benchmarks.ann.grid import Grid, Point, Runner, describe_failures

pytestmark = pytest.mark.release

BAD = "geopres:999"
GRID = Grid(
    methods=("none", BAD, "pca:8"),
    engines=("hnswlib", "flat", "nothing"),
    sizes=(300,),
    seeds=1,
    queries=20,
    fit=60,
    efs=(10, 40),
    oversampling=(1, 4),
    runs=1,
)
GOOD = replace(GRID, methods=("none", "pca:8"), engines=("hnswlib", "flat"))
ASKED = {  # by method and engine, the efforts and oversamplings that a graph of ten neighbours can be asked with
    ("none", "hnswlib"): {(10, 1), (40, 1)},
    ("none", "flat"): {(1, 1)},
    ("pca:8", "hnswlib"): {(10, 1), (40, 1), (40, 4)},
    ("pca:8", "flat"): {(1, 1), (1, 4)},
}


@pytest.fixture(scope="module")
def data(unit):
    return Data("clusters", unit, None, ())


@pytest.fixture(scope="module")
def first(tmp_path_factory, data):
    """Run the grid once for all tests of this module and return its folder and results."""
    folder = tmp_path_factory.mktemp("grid")
    return SimpleNamespace(folder=folder, results=Runner(GRID, data, folder).run())


@pytest.fixture
def copied(first, tmp_path):
    """Return a copy of the folder of the first run, to resume from."""
    return shutil.copytree(first.folder, tmp_path / "grid")


def lines(folder):
    return (folder / "points.jsonl").read_text().splitlines()


def measured(results):
    return {(r["method"], r["engine"]): r for r in results if "error" not in r}


def settings_of(result):
    return {(one["effort"], one["oversampling"]): one for one in result["settings"]}


def test_grid_run_measures_every_point_at_every_valid_effort_and_oversampling(first):
    found = measured(first.results)
    assert {key: set(settings_of(result)) for key, result in found.items()} == ASKED
    assert {key: result["dimensions"] for key, result in found.items()} == {
        key: 8 if key[0] == "pca:8" else 32 for key in ASKED
    }


def test_a_second_grid_run_measures_no_finished_point_again(copied, data, first):
    before = (copied / "points.jsonl").stat().st_mtime_ns, lines(copied)
    again = Runner(GOOD, data, copied).run()
    assert ((copied / "points.jsonl").stat().st_mtime_ns, lines(copied)) == before
    assert measured(again) == measured(first.results) and len(again) == 4


def test_the_next_grid_run_retries_failed_points(copied, data):
    grid = replace(GRID, methods=("none", BAD), engines=("hnswlib", "flat"))
    before = lines(copied)
    assert len(describe_failures(Runner(grid, data, copied).run())) == 2
    added = [json.loads(line) for line in lines(copied)[len(before) :]]
    assert [(r["method"], r["engine"]) for r in added] == [(BAD, "hnswlib"), (BAD, "flat")]
    mended = json.dumps({name: value for name, value in added[0].items() if name != "error"} | {"settings": []})
    with (copied / "points.jsonl").open("a") as file:
        file.write(mended + "\n")
    assert len(describe_failures(Runner(grid, data, copied).run())) == 1


def test_the_key_of_a_point_depends_on_the_data_the_grid_settings_and_the_chain(data, unit, tmp_path, clusters):
    """It does not depend on the grid's other methods and engines."""
    point = Point(0, 300, "pca:8", "flat", 0)
    runner = Runner(GRID, data, tmp_path)
    others = [replace(point, **{name: 1}) for name in ("seed", "m")] + [replace(point, method="pca:9")]
    keys = [runner.build_key(other) for other in [point, *others]]
    for changed in ({"k": 5}, {"efs": (10,)}, {"runs": 2}, {"sizes": (300, 310)}, {"targets": (0.5,)}):
        keys.append(Runner(replace(GRID, **changed), data, tmp_path).build_key(point))
    keys.append(Runner(GRID, replace(data, vectors=unit[:390]), tmp_path).build_key(point))
    assert len(set(keys)) == len(keys)
    assert (
        Runner(GOOD, data, tmp_path).build_key(point) == keys[0]
    )  # other methods and engines are no matter of its own
    wide = Runner(GRID, replace(data, vectors=clusters(30, 384)), tmp_path)
    assert wide.build_key(replace(point, method="compact")) != wide.build_key(replace(point, method="debias"))
