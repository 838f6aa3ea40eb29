import json
import re
from pathlib import Path

import pytest

from research.paper_findings.findings import compute_findings, summarize
from research.paper_findings.report import format_report, write_report
from research.tests.paper_findings.report_example import TASKS, build_full_results
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


@pytest.fixture(scope="module")
def elements(written):
    return Elements(written["report.html"])


def test_the_json_holds_every_score_with_its_metrics(results, written):
    found = {
        (row["encoder"], row["method"], row["task"]): row for row in json.loads(written["evaluation.json"])["scores"]
    }
    assert len(found) == len(results.scores)
    for score in results.scores:
        row = found[score.encoder, score.method, score.task]
        assert (row["score"], row["metrics"], row["error"]) == (score.score, score.metrics, score.error)


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


def test_reports_hold_no_texts_and_no_local_paths(results, written):
    for name in ("evaluation.json", "report.html"):
        assert "sentences.txt" in written[name]
        assert not any(place in written[name] for place in ("/private", str(results.request.out), str(Path.cwd())))
    tasks = json.loads(written["evaluation.json"])["tasks"]
    assert [task["texts"] for task in tasks] == [1] * len(TASKS) + [0]
    assert not any("asked" in task for task in tasks)


def test_the_page_of_a_full_evaluation_has_three_figures(elements):
    assert sum(tag == "svg" for tag, _ in elements.found) == 3


def test_format_report_shows_aligned_tables_the_summary_and_the_problems(results):
    shown = format_report(results, compute_findings(results)).split("\n\n")
    assert [part.split("\n")[0].split(" ")[0] for part in shown] == ["Mean", "Differences", "Share", "R1", "Problems"]
    for part in shown[:3]:
        lines = part.split("\n")[1:]
        assert len({len(line) for line in lines}) == 1
    assert shown[3].split("\n") == summarize(compute_findings(results))


def summarize_scores(build, table, **scores):
    """Return the summary of one encoder's scores by method, for tasks of one type."""
    tasks = [f"task {i}" for i in range(len(scores["control"]))]
    return summarize(compute_findings(build(table("e", tasks, **scores))))


@pytest.mark.parametrize(
    ("gains", "told"),
    [
        ([1, 2, 3, 4, 5], r"\+3\.00 points \[\+1\.\d\d, \+4\.\d\d\]: a gain; better on 1, worse on 0 of 1 encoder"),
        ([-1, -2, -3, -4, -5], r"-3\.00 points \[-4\.\d\d, -1\.\d\d\]: a loss; better on 0, worse on 1 of 1 encoder"),
        (
            [5, -5, 4, -4, 1],
            r"\+0\.20 points \[-3\.\d\d, \+3\.\d\d\]: not told from zero; better on 0, worse on 0 of 1 encoder",
        ),
        ([1], r"\+1\.00 points: not told from zero; better on 0, worse on 0 of 1 encoder"),
    ],
)
def test_the_summary_calls_a_difference_a_gain_or_loss_only_if_its_interval_excludes_0(build, table, gains, told):
    first, *_ = summarize_scores(build, table, control=[0.5] * len(gains), R2=[0.5 + gain / 100 for gain in gains])
    assert re.fullmatch(rf"R2 changes the score by {told} \(\|t\| > 2\)\.", first)


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        ([0.40, 0.41, 0.42], "keeps 82.0 % [80.0, 84.0] of the score, above PCA in STS."),
        ([0.20, 0.21, 0.22], "keeps 42.0 % [40.0, 44.0] of the score, below PCA in STS."),
        ([0.20, 0.32, 0.42], "of the score, no type of task beyond the interval from PCA."),
    ],
)
def test_the_summary_puts_a_reducer_above_or_below_pca_only_if_the_interval_excludes_0(build, table, kept, told):
    scores = {"control": [0.5] * 3, "geopres:4": kept, "pca:4": [0.30, 0.31, 0.32]}
    found = summarize_scores(build, table, **scores)
    assert found[0].startswith("geopres at 1/2 of the dimensions keeps ")
    assert found[0].endswith(told)
    assert found[1] == "pca at 1/2 of the dimensions keeps 62.0 % [60.0, 64.0] of the score."


@pytest.mark.parametrize(("sign", "told"), [(1, "it grows with ‖μ‖"), (-1, "it falls with ‖μ‖")])
def test_the_summary_says_whether_the_gain_grows_or_falls_with_the_mean_norm(build, table, sign, told):
    values, norms = {}, {f"e{i}": 0.1 * i for i in range(1, 9)}
    for name, norm in norms.items():
        values |= table(name, "ab", control=[0.5, 0.6], R2=[0.5 + sign * norm / 10, 0.6 + sign * norm / 9])
    found = [one for one in summarize(compute_findings(build(values, norms=norms))) if "‖μ‖" in one]
    assert len(found) == 1  # nothing was classified
    assert f"R2's mean difference against ‖μ‖ over 8 encoders: r = {sign:.2f}" in found[0]
    assert told in found[0]


@pytest.mark.parametrize(
    ("german", "told"), [(0.45, "10.0 points of retention more"), (0.3, "20.0 points of retention less")]
)
def test_the_summary_compares_retention_in_other_languages_with_english(build, table, german, told):
    values = table("e", ["set", "set_de"], control=[0.5, 0.5], **{"pca:4": [0.4, german]})
    found = summarize(compute_findings(build(values, languages={"set_de": "de"})))[-1]
    assert found.startswith(f"pca keeps {told} in other languages than in English")


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
