import json
import math
from pathlib import Path

import pytest

from benchmarks.rates import list_graphs, list_recalls, read_rates
from benchmarks.scaling import (
    FORMATS,
    Inputs,
    compute_graph_bytes,
    compute_storage,
)

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
INPUTS = Inputs(
    bfloat16=200,
    float32=100,
    moments=10,
    trained=60,
    ids=64,
    beside=100,
    build_full=400,
    build_full_growth=0.5,
    build_compact=100,
    build_compact_growth=0.5,
    search_full=100,
    search_full_growth=0.5,
    search_compact=50,
    search_compact_growth=0.5,
    cores=10,
    memory=1,
    usable=0.5,
    disk=1,
    day=12,
    patience=1,
)


def test_graph_bytes_match_the_recorded_measurements():
    figures = json.loads((RESULTS / "ann.json").read_text())["figures"]
    measured = list_graphs(figures)
    assert len(measured) >= 5
    for dimensions, m, count in measured:
        assert compute_graph_bytes(dimensions, m) == pytest.approx(count, rel=1e-3)


def test_read_rates_reads_every_measured_input_with_its_file_and_key():
    """Computed index bytes match the recorded ones, and every format has a recorded recall."""
    rates = read_rates(RESULTS)
    wanted = {name for name, value in vars(Inputs()).items() if math.isnan(value)}
    assert rates.keys() == wanted
    assert all((RESULTS / rate.file).is_file() and rate.key and rate.value > 0 for rate in rates.values())
    index = json.loads((RESULTS / "index.json").read_text())["figures"]
    kept = compute_storage(index["rows"], Inputs(**vars(INPUTS) | {"ids": rates["ids"].value}), 128)
    for part, measured in index["filling"]["bytes"].items():
        assert kept[part] == pytest.approx(measured, rel=1e-3), part
    found = list_recalls(json.loads((RESULTS / "ann.json").read_text())["figures"])
    assert all(method in found for _, _, method in FORMATS if method)
