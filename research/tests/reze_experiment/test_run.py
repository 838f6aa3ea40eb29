import csv
import shutil
import time
from dataclasses import asdict, replace
from types import SimpleNamespace

import orjson
import pytest

from lathe.training.datasets.records import normalize_text
from research.reze_experiment.report import format_terminal, to_csv, write_report
from research.reze_experiment.unit import run_unit

pytestmark = [pytest.mark.usefixtures("kept_scoring_process"), pytest.mark.release]

ROWS = (8,)
TARGETS = ("tone", "search")
TRAINED = ("pft", "distill", "reze")
EXPECTED = {("none", 0)} | {(method, 0) for method in TRAINED}
EXPECTED |= {(method, n) for method in ("ft", "pft_whitening", "pft_flow", *TRAINED) for n in ROWS}
BROKEN = {"broken": {"loss_weight": 1e300}}
"""No number of float32, so the loss is none from the first step on."""


@pytest.fixture(scope="module")
def first(settings_of, experiment, tmp_path_factory):
    """Run the experiment of these tests: all methods on two targets, and a condition that cannot be trained."""
    out, told = tmp_path_factory.mktemp("experiment") / "out", []
    found = experiment(settings_of(variants=BROKEN), out, told=told)
    findings, files = write_report(found, out)
    return SimpleNamespace(out=out, found=found, findings=findings, files=files, told=told)


@pytest.fixture(scope="module")
def extended(first, settings_of, experiment, tmp_path_factory):
    """Add a seed and a size on one target.

    REZE's results file is truncated, distillation's targets are damaged.
    """
    out, told = tmp_path_factory.mktemp("experiment") / "out", []
    shutil.copytree(first.out, out)
    (path,) = (out / "results").glob("tone-reze-*.jsonl")
    payload = path.read_bytes()
    path.write_bytes(payload[: payload.index(b"\n") + 40])  # in the middle of the second line
    for manifest in out.glob("targets/*/manifest.json"):
        if orjson.loads(manifest.read_bytes())["regularizer"].get("target") == "reference":
            manifest.write_bytes(b"{cut")
    settings = settings_of(targets=("tone",), methods=("distill", "reze"), seeds=(0, 1), rows=(*ROWS, 16))
    found = experiment(settings, out, told=told)
    findings, _ = write_report(found, out)
    return SimpleNamespace(out=out, found=found, path=path, payload=payload, told=told, findings=findings)


def cells(results):
    """Return what identifies each result."""
    return [(r.target, r.learning_rate, r.seed, r.method, r.rows) for r in results]


def read_lines_with_times(folder):
    """Return contents and modification times of the JSON-lines files in a folder."""
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.glob("*.jsonl")}


def without_time(result):
    """Return a result's fields but the time, which two runs need not agree on."""
    return {name: value for name, value in asdict(result).items() if name != "seconds_per_step"}


def assert_equal_results(one, other):
    """Assert that two results are equal but for the time, numbers up to 1e-6."""
    one, other = without_time(one), without_time(other)
    numbers = [name for name, value in one.items() if isinstance(value, float)]
    assert {name: one[name] for name in numbers} == pytest.approx({name: other[name] for name in numbers}, abs=1e-6)
    assert {name: one[name] for name in one if name not in numbers} == {
        name: other[name] for name in other if name not in numbers
    }


def test_an_experiment_has_each_result_of_each_condition_exactly_once(first):
    found = cells(first.found.results)
    assert len(found) == len(set(found))
    assert set(found) == {(target, 1e-3, 0, method, n) for target in TARGETS for method, n in EXPECTED}
    assert [one.target.name for one in first.found.prepared] == list(TARGETS)
    for result in first.found.results:
        assert 0 <= result.score <= 1
        assert (result.drift is None) == (result.isoscore is None) == (result.rows > 0)
        assert result.rows or (0 <= result.isoscore <= 1 and -1e-6 <= result.drift <= 2)
        assert (result.label_accuracy is None) == (result.target == "search")
        assert result.metric == {"tone": "accuracy", "search": "ndcg_at_10"}[result.target]
    assert list((first.out / "results").glob("*.part")) == []


def test_a_condition_that_cannot_be_trained_is_a_problem_and_the_others_finish(first):
    assert len(first.found.problems) == 2
    for problem, target in zip(sorted(first.found.problems), sorted(TARGETS), strict=True):
        assert problem.startswith(f"{target}-broken-") and "seed 0: the loss became inf" in problem
    assert "broken" not in {result.method for result in first.found.results}
    assert all(problem in format_terminal(first.found, first.findings) for problem in first.found.problems)


def test_the_mixture_holds_neither_the_target_nor_texts_of_its_test(first, shared_texts):
    for one in first.found.prepared:
        target, mixture = one.target, one.mixture
        assert set(mixture.names) == {"tone", "search", "topic", "twins"} - {target.name}
        texts = {normalize_text(text) for text in (*mixture.anchors, *mixture.positives)}
        assert normalize_text(shared_texts[target.name]) not in texts
        assert all(normalize_text(text) in texts for name, text in shared_texts.items() if name != target.name)
        dropped = {report.name: report.shared for report in mixture.reports}
        assert dropped == {target.name: 0, "topic": 1, "twins": int(target.name == "search")} | {
            name: 0 for name in TARGETS
        }


def test_fine_tuning_pairs_have_no_anchor_of_the_test(first):
    for target, pairs in ((one.target, one.pairs) for one in first.found.prepared):
        rows = target.data.read_rows("queries" if target.name == "search" else "test")
        tested = {normalize_text(row["text"]) for row in rows}
        trained = {normalize_text(pair.anchor) for pair in pairs}
        if target.name == "search":
            tested = {text for text in tested if int(text.split()[-1].strip("?")) >= 24}
        assert tested and len(trained) == {"tone": 30, "search": 24}[target.name]  # of 31, and of 24
        assert not tested & trained


def test_running_a_finished_experiment_again_computes_and_writes_nothing(first, settings_of, experiment):
    before, told = read_lines_with_times(first.out / "results"), []
    begun = time.process_time()
    again = experiment(settings_of(), first.out, told=told)
    assert time.process_time() - begun < 5
    assert read_lines_with_times(first.out / "results") == before
    assert again.results == first.found.results and again.problems == []
    assert not any("units done" in sentence or "encoding" in sentence for _, sentence in told)


def test_a_unit_run_alone_gives_the_results_of_the_experiment(first, tmp_path):
    (unit,) = (u for u in first.found.units if (u.target.name, u.condition.method) == ("search", "pft"))
    alone = replace(unit, out=tmp_path, shown=False)
    run_unit(alone)
    expected = unit.log.read()
    assert len(expected) == 4
    for one, other in zip(alone.log.read(), expected, strict=True):
        assert_equal_results(one, other)
    assert list((tmp_path / "work").iterdir()) == []


def test_results_do_not_depend_on_the_order_of_targets_methods_seeds_and_sizes(
    first, extended, settings_of, experiment
):
    methods = tuple(sorted({method for method, _ in EXPECTED}, reverse=True))
    found = experiment(settings_of(targets=TARGETS[::-1], methods=methods), first.out)
    assert sorted(found.results, key=str) == sorted(first.found.results, key=str)
    other = settings_of(targets=("tone",), methods=("reze",), seeds=(1, 0), rows=(16, *ROWS))
    expected = [result for result in extended.found.results if result.method == "reze"]
    assert sorted(experiment(other, extended.out).results, key=str) == sorted(expected, key=str)


def test_the_csv_has_a_row_for_each_result_and_the_json_results_settings_and_findings(first):
    with (first.out / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert to_csv(first.found.results) == (first.out / "results.csv").read_text()
    assert [(r["target"], r["method"], int(r["rows"]), float(r["score"])) for r in rows] == [
        (r.target, r.method, r.rows, r.score) for r in first.found.results
    ]
    found = orjson.loads((first.out / "experiment.json").read_bytes())
    assert found["results"] == [asdict(result) for result in first.found.results]
    assert (found["targets"], found["problems"]) == (list(TARGETS), first.found.problems)
    assert found["settings"]["rows"] == list(ROWS) and "sources" not in found["settings"]
    assert len(found["findings"]["averages"]) == len(first.findings.averages) > 0
    assert found["encoder"]["dimensions"] == 16 and found["encoder"]["max_length"] == 16
