import csv
import json
import re
from pathlib import Path

import pytest

from lathe.training.evaluation.decision import decide
from lathe.training.evaluation.report import format_report, write_report
from tests.training.evaluation.report_example import TASKS, Elements, build_full_results


@pytest.fixture(scope="module")
def results(build, table, tmp_path_factory):
    """Return results with something for every part of the report."""
    return build_full_results(build, table, tmp_path_factory.mktemp("evaluation"))


@pytest.fixture(scope="module")
def written(results):
    """Write the three files of the report and return their text by name."""
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
    row = found["one", "small", "stsb_de"]
    assert (row["type"], row["language"], row["group"]) == ("STS", "de", "chain")
    control = found["one", "control", "stsb_de"]["score"]
    assert row["difference_points"] == pytest.approx(100 * (row["score"] - control))


def test_the_json_holds_the_answer_as_fields_and_every_comparison(results, written):
    whole, decision = json.loads(written["evaluation.json"]), decide(results)
    assert whole["decision"]["sentence"] == decision.sentence == whole["sentences"][0]
    assert whole["decision"]["choice"] == {"encoder": "one", "label": decision.choice.label}
    assert whole["decision"]["difference_points"] == decision.comparison.verdict.difference.value
    assert len(whole["comparisons"]) == len(decision.comparisons) == 2 + 3 * (4 + 3)
    for found, comparison in zip(whole["comparisons"], decision.comparisons, strict=True):
        between, *within = found["verdicts"]
        assert (between["data_set"], between["outcome"]) == (None, comparison.between.outcome)
        assert [one["data_set"] for one in within] == [one.data_set for one in comparison.within]
        assert [one["difference"]["value"] for one in within] == [one.difference.value for one in comparison.within]
    assert whole["sentences"] == decision.to_sentences()
    assert whole["tasks"][-1]["error"] == "test.jsonl: row 3 has no 'text'"


def test_reports_hold_no_texts_and_no_local_paths(results, written):
    for name in ("evaluation.json", "report.html"):
        assert not any(place in written[name] for place in (str(results.request.out), str(Path.cwd())))
    tasks = json.loads(written["evaluation.json"])["tasks"]
    assert [task["texts"] for task in tasks] == [1] * len(TASKS) + [0]
    assert not any("asked" in task for task in tasks)


def test_the_csv_has_a_row_for_each_score(results, written):
    rows = list(csv.DictReader(written["scores.csv"].splitlines()))
    found = {(row["encoder"], row["method"], row["task"]): row for row in rows}
    assert len(rows) == len(found) == len(results.scores)
    assert not any(None in row or None in row.values() for row in rows)
    for score in results.scores:
        row = found[score.encoder, score.method, score.task]
        assert row["score"] == ("" if score.score is None else repr(score.score))
        assert row["error"] == (score.error or "")


def test_the_page_loads_nothing_and_has_no_scripts_or_links(elements, written):
    tags = {tag for tag, _ in elements.found}
    assert not tags & {"script", "link", "iframe", "object", "base", "a"}
    places = [attrs[name] for _, attrs in elements.found for name in ("src", "href", "xlink:href") if name in attrs]
    assert places
    assert not [place for place in places if not place.startswith(("#", "data:image/png;base64,"))]
    assert not re.findall(r"@import|url\((?!#)", written["report.html"])


def test_titles_names_and_errors_are_escaped_on_the_page(elements):
    """Text from users opens no tag, in tables and figures, and every tag of the page is closed."""
    text = "".join(elements.text)
    assert elements.open == []
    assert not {"b", "i", "script"} & {tag for tag, _ in elements.found}
    assert "Ours <b>& theirs" in text
    assert "<script>three" in text
    assert 'RuntimeError: out, of "memory"' in text
    assert sum(tag == "svg" for tag, _ in elements.found) == 1


def test_failures_are_listed_as_problems_on_the_page_and_the_terminal(results, written):
    problems = [
        "torn was not evaluated: test.jsonl: row 3 has no 'text'",
        "one: other@1 was not compared: it was fitted on another encoder's vectors",
        'r0 on two with R1 failed: RuntimeError: out, of "memory"',
    ]
    listed = Elements(written["report.html"].partition("<h2>Problems</h2>")[2].partition("<footer>")[0])
    assert [text for text in listed.text if text.strip()] == problems
    assert "\n\nProblems\n" + "\n".join(problems) + "\n\n" in format_report(results, decide(results))


def test_format_report_shows_aligned_tables_the_sentences_the_problems_and_the_answer_last(results):
    decision = decide(results)
    shown = format_report(results, decision).split("\n\n")
    assert [part.split(" ")[0] for part in shown[:2]] == ["Mean", "Differences"]
    for part in shown[:2]:
        lines = part.split("\n")[1:]
        assert len({len(line) for line in lines}) == 1
    answer, *sentences = decision.to_sentences()
    assert shown[2].split("\n") == sentences
    assert shown[-1] == answer


SMALL = {
    "one score": {"control": [0.5]},
    "one method on one task": {"control": [0.5], "R2": [0.6]},
    "no method worked": {"control": [0.5, 0.6], "R2": [None, None]},
    "not even raw vectors": {"control": [None, None], "R2": [0.6, 0.7]},
    "nothing changed": {"control": [0.5, 0.6], "R1": [0.5, 0.6], "R2": [0.5, 0.6]},
    "all scores are zero": {"control": [0.0, 0.0], "R2": [0.0, 0.0]},
}


@pytest.mark.parametrize("scores", SMALL.values(), ids=SMALL)
def test_reports_of_small_or_failed_evaluations_are_complete(build, table, tmp_path, scores):
    results = build(table("e", "abc"[: len(scores["control"])], **scores), out=tmp_path, broken={"torn": "no rows"})
    decision, _ = write_report(results)
    found = json.loads((tmp_path / "evaluation.json").read_text())
    assert [row["score"] for row in found["scores"]] == [
        score.score for score in sorted(results.scores, key=lambda s: s.task)
    ]
    assert Elements((tmp_path / "report.html").read_text()).open == []
    assert "torn was not evaluated: no rows" in format_report(results, decision)
    worked = [name for name in ("R1", "R2") if None not in [*scores["control"], *scores.get(name, [None])]]
    against_raw = [one.compared.label for one in decision.comparisons if one.baseline.label == "control"]
    assert against_raw == worked
    assert found["decision"]["sentence"] == decision.sentence
