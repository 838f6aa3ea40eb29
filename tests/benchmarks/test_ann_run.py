import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.ann.__main__ import main

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[2]
SMALL = ["--quick", "--sizes", "300", "--query-count", "20", "--fit-rows", "60", "--bytes", "32"]
ENGINES = ["--engine", "hnswlib", "--engine", "flat"]
SETTINGS = {"none hnswlib": 5, "none flat": 1, "pca:8 hnswlib": 5 + 4 + 3 + 2, "pca:8 flat": 4}


def ann(*arguments):
    """Run the command in this process and return its exit status and output as of a process of its own."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        patch.setattr(sys, "argv", ["benchmarks.ann", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
            err.write(f"{ended.code}\n" * isinstance(ended.code, str))
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def ann_alone(*arguments):
    """Run the command in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.ann", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture(scope="module")
def first(tmp_path_factory, vectors):
    """Run once for all tests of this module, on vectors of which one is zero and one a duplicate."""
    folder = tmp_path_factory.mktemp("run")
    np.save(folder / "sets.npy", np.vstack([vectors, 2 * vectors[:1], 0 * vectors[:1]]))
    given = ["--vectors", folder / "sets.npy", *SMALL]
    ended = ann_alone(*given, "--out", folder / "out", "--method", "pca:8", *ENGINES)
    return SimpleNamespace(given=given, out=folder / "out", ended=ended)


def refuse(name):
    """Fail on a JSON constant such as NaN."""
    raise AssertionError(f"{name} is no JSON")


def test_ann_run_exits_with_0_and_writes_json_csv_html_and_two_svg_files(first):
    assert first.ended.returncode == 0, first.ended.stderr
    written = {path.name for path in first.out.iterdir() if path.is_file()}
    assert written == {"ann.json", "ann.csv", "ann.html", "ann-frontiers.svg", "ann-equal-bytes.svg"}
    for path in first.out.glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_ann_json_has_all_figures_and_no_nan_or_path_of_the_machine(first):
    text = (first.out / "ann.json").read_text()
    report = json.loads(text, parse_constant=refuse)
    for folder in (first.out.parent, ROOT, Path.home(), Path(sys.prefix)):
        assert str(folder) not in text
    figures = report["figures"]
    assert figures["data"] | {"digest": ""} == {"name": "sets.npy", "vectors": 400, "width": 32, "digest": ""}
    assert {f"{p['method']} {p['engine']}": len(p["settings"]) for p in figures["points"]} == SETTINGS
    assert [row["method"] for row in figures["equal_bytes"]] == ["geopres:8", "pca:8", "truncation:8", "int8"]
    assert report["command"].startswith("python -m benchmarks.ann")
    assert " --vectors sets.npy --quick " in report["command"] and "/" not in report["command"]
    assert figures["engines"]["hnswlib"] and figures["grid"]["sizes"] == [300]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [(None, "there is no file or folder"), (9, "9 distinct vectors leave 7 to search with 1 queries")],
    ids=["missing", "too few"],
)
def test_bad_input_makes_ann_exit_with_1_and_one_line_on_stderr(tmp_path, vectors, rows, sentence):
    if rows is not None:
        np.save(tmp_path / "sets.npy", vectors[:rows])
    ended = ann("--vectors", tmp_path / "sets.npy", *SMALL, "--out", tmp_path / "out", *ENGINES)
    assert ended.returncode == 1 and ended.stdout == ""
    assert ended.stderr.startswith(f"benchmarks.ann: {sentence}") and len(ended.stderr.splitlines()) == 1
