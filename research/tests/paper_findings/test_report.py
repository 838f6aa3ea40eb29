import json

import pytest

from research.paper_findings.findings import compute_findings, summarize
from research.paper_findings.report import format_report, write_report
from research.tests.paper_findings.report_example import build_full_results
from tests.training.evaluation.report_example import Elements


@pytest.fixture(scope="module")
def results(build, table, tmp_path_factory):
    """Return results with something for every part of the report."""
    return build_full_results(build, table, tmp_path_factory.mktemp("evaluation"))


@pytest.fixture(scope="module")
def written(results):
    """Write the three files of the report, and return their text by name."""
    _, paths = write_report(results)
    assert [path.name for path in paths] == ["evaluation.json", "scores.csv", "report.html"]
    assert sorted(path.name for path in results.request.out.iterdir()) == sorted(path.name for path in paths)
    return {path.name: path.read_text() for path in paths}


def test_the_json_holds_every_finding(results, written):
    whole, findings = json.loads(written["evaluation.json"]), compute_findings(results)
    found = whole["findings"]
    assert len(found["cells"]) == len(findings.cells) == 3 * 4
    assert [cell["test"]["t"] for cell in found["cells"]] == [cell.test.t for cell in findings.cells]
    assert found["overall"]["R2"]["low"] == findings.overall["R2"].low
    assert [one["mean"]["value"] for one in found["retentions"]] == [one.mean.value for one in findings.retentions]
    assert all(found.values())  # no part of it is empty
    assert whole["sentences"] == summarize(findings)
    assert whole["tasks"][-1]["error"] == "test.jsonl: row 3 has no 'text'"


SMALL = {
    "one reduction": {"control": [0.5, 0.6], "pca:4": [0.4, 0.5]},
    "no method worked": {"control": [0.5, 0.6], "R2": [None, None], "pca:4": [None, None]},
    "all scores are zero": {"control": [0.0, 0.0], "R2": [0.0, 0.0], "pca:4": [0.0, 0.0]},
}


@pytest.mark.parametrize("scores", SMALL.values(), ids=SMALL)
def test_reports_of_small_or_failed_evaluations_are_complete(build, table, tmp_path, scores):
    results = build(table("e", "abc"[: len(scores["control"])], **scores), out=tmp_path, broken={"torn": "no rows"})
    findings, _ = write_report(results)
    found = json.loads((tmp_path / "evaluation.json").read_text())
    assert [row["score"] for row in found["scores"]] == [
        score.score for score in sorted(results.scores, key=lambda s: s.task)
    ]
    assert Elements((tmp_path / "report.html").read_text()).open == []
    assert "torn was not evaluated: no rows" in format_report(results, findings)
    worked = [name for name in ("R1", "R2") if None not in [*scores["control"], *scores.get(name, [None])]]
    assert [cell.label for cell in findings.cells] == worked
