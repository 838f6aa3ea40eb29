import csv
import json

import pytest

from tests.helpers import require_one_line

pytestmark = [
    pytest.mark.usefixtures("scoring_here"),
    pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning"),
]

WORDS = ["profit", "ledger", "sparrow", "tulip", "kettle", "soup", "debt", "loan", "robin", "hedge"]
TEXTS = [f"The {WORDS[n % 10]} was {['sold', 'seen in the garden', 'boiled'][n % 3]} {n} times." for n in range(30)]
CLASSES = [{"text": text, "label": n % 3} for n, text in enumerate(TEXTS)]
SENTENCES = [{"sentence1": TEXTS[n], "sentence2": TEXTS[(n * 7 + 1) % 30], "score": n % 5} for n in range(30)]
PAIRS = [{"anchor": f"What of the {WORDS[n % 10]} and {n}?", "positive": TEXTS[n]} for n in range(30)]


@pytest.fixture(scope="module")
def suite(tmp_path_factory, write_suite):
    """Write a suite of four data sets, one of them without rows."""
    root = tmp_path_factory.mktemp("data") / "tiny"
    sets = {
        "classes": ("classification", {"train": CLASSES, "test": CLASSES}),
        "same": ("sts", {"test": SENTENCES}),
        "search": ("pairs", {"test": PAIRS}),
        "without rows": ("sts", {}),
    }
    return write_suite(root, sets)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The folder that the first run leaves for the others."""
    return tmp_path_factory.mktemp("evaluations") / "out"


def comparing(suite, out, *more):
    """Return the arguments of `lathe evaluate` with both starter chains on a few texts."""
    chains = ("--chain", "compact,debias", "--limit", 20, "--processes", 1)
    return ("evaluate", "--suite", suite, "--out", out, *chains, *more)


def test_evaluate_compares_chains_with_raw_vectors_in_a_table_and_three_files(run, suite, out):
    """A data set that cannot be read is named, and no file contains an absolute path."""
    status, printed, err = run(*comparing(suite, out))
    assert status == 0, err
    assert err.split()[-3:] == [str(out / name) for name in ("evaluation.json", "scores.csv", "report.html")]

    found = json.loads((out / "evaluation.json").read_text())
    assert (found["suite"], found["limit"]) == ("tiny", 20)
    tasks = ["classes", "same", "search"]
    assert [task["task"] for task in found["tasks"] if task["error"] is None] == tasks
    scores = {(row["task"], row["method"]): row["score"] for row in found["scores"]}
    expected = {(task, method) for task in tasks for method in ("control", "compact@1", "debias@1")}
    assert set(scores) == expected | {("search", "compact@1 rescored")}
    assert [scores[task, "compact@1"] for task in tasks] != [scores[task, "debias@1"] for task in tasks]

    with (out / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["task"], row["method"]): float(row["score"]) for row in rows} == scores
    for row in rows:
        difference = 100 * (scores[row["task"], row["method"]] - scores[row["task"], "control"])
        assert float(row["difference_points"]) == pytest.approx(difference, abs=1e-9)

    mean = sum(scores[task, "control"] for task in tasks) / 3
    cells = [line.split() for line in printed.splitlines()]
    assert next(line for line in cells if line[:1] == ["all-MiniLM-L6-v2"])[1] == f"{100 * mean:.2f}"
    assert printed.splitlines()[-1] == found["decision"]["sentence"] == found["sentences"][0]
    assert found["decision"]["baseline"] == {"encoder": "all-MiniLM-L6-v2", "label": "control"}
    compared = [(one["baseline"]["label"], one["compared"]["label"]) for one in found["comparisons"]]
    against_raw = [("control", name) for name in ("compact@1", "debias@1", "compact@1 rescored")]
    assert compared == [*against_raw, ("compact@1", "debias@1")]
    (rescored,) = found["comparisons"][2]["verdicts"]
    assert (rescored["data_set"], rescored["unit"], rescored["units"]) == ("search", "query", 20)
    assert "without rows was not evaluated: test.jsonl is missing" in printed.splitlines()

    report = (out / "report.html").read_text()
    assert "<h1>On average over 3 data sets, " in report
    assert "compact@1" in report and "without rows was not evaluated" in report
    for text in (report, json.dumps(found), (out / "scores.csv").read_text()):
        assert str(suite.parent) not in text and str(out.parent) not in text


def test_evaluate_prints_with_json_what_it_writes(run, suite, out):
    status, printed, err = run(*comparing(suite, out, "--json"))
    assert status == 0, err
    assert json.loads(printed) == json.loads((out / "evaluation.json").read_text())


def test_evaluate_prints_one_line_for_an_unknown_chain_and_for_a_missing_or_unusable_suite(run, suite, tmp_path):
    require_one_line(run("evaluate", "--suite", suite, "--out", tmp_path / "out", "--chain", "nobody"), "nobody")
    known = "there is no suite 'nowhere': name a folder, a YAML file, mteb:TASK,… or one of finmteb, mean-bias-panel"
    require_one_line(run(*comparing("nowhere", tmp_path / "out")), known)
    (tmp_path / "data" / "a set").mkdir(parents=True)
    require_one_line(run(*comparing(tmp_path / "data", tmp_path / "out")), "holds no data sets")
    (tmp_path / "data" / "a set" / "test.jsonl").write_text("{}")
    unread = "no data set can be evaluated: a set: META.json is missing"
    require_one_line(run(*comparing(tmp_path / "data", tmp_path / "out")), unread)
