"""The trained model against its base, on two suites."""

import numpy as np
import orjson
import pytest
from scipy import stats

from lathe.training.errors import EvaluationError, JobError
from lathe.training.evaluation.statistics import holm
from lathe.training.finetuning.job import Job
from lathe.training.finetuning.post_training_evaluation import (
    TaskScores,
    build_category_table,
    build_task_table,
    compare_categories,
    summarize_comparison,
)
from lathe.training.finetuning.run import run_training

pytestmark = pytest.mark.usefixtures("kept_scoring_process", "little_garbage")

WORDS = ["ledger", "lathe", "rain", "committee", "interest", "tomato", "wall", "spring", "bank", "hill"]


def test_holm_equals_statsmodels_and_keeps_none():
    from statsmodels.stats.multitest import multipletests

    p = [0.04, 0.01, 0.9, 0.03, 0.005]
    np.testing.assert_allclose(holm(p), multipletests(p, method="holm")[1])
    assert holm([None, 0.02, None, 0.5]) == [None, 0.04, None, 0.5]
    assert holm([]) == []


def test_compare_categories_tests_pairs_by_category_with_holms_correction():
    scores = {
        "Retrieval": [(0.5, 0.55), (0.6, 0.68), (0.4, 0.46)],
        "STS": [(0.7, 0.6), (0.8, 0.75)],
        "Clustering": [(0.3, 0.3)],
    }
    tasks = [
        TaskScores(f"{name}{n}", name, base, adapted, 0)
        for name, some in scores.items()
        for n, (base, adapted) in enumerate(some)
    ]
    retrieval, sts, clustering, whole = compare_categories(tasks)
    expected = stats.ttest_rel([0.55, 0.68, 0.46], [0.5, 0.6, 0.4]).pvalue
    assert (retrieval.tasks, retrieval.p) == (3, pytest.approx(expected))
    assert retrieval.p_holm == pytest.approx(2 * expected) and retrieval.significant
    assert sts.p_holm == pytest.approx(sts.p) and not sts.significant
    assert (clustering.p, clustering.p_holm, clustering.significant) == (None, None, False)
    assert (whole.name, whole.tasks) == ("all", 6)
    assert whole.retention.value == pytest.approx(sum(t.adapted for t in tasks) / sum(t.base for t in tasks))


@pytest.fixture
def job(tmp_path, tiny_model, write_data_set):
    """Return a job with a suite of its domain, some of whose texts are trained on, and a general suite."""
    pairs = [{"anchor": f"{WORDS[n % 10]} {n}", "positive": f"the {WORDS[n % 10]} of {n}"} for n in range(16)]
    (tmp_path / "pairs.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in pairs))
    for suite, start in (("domain", 0), ("general", 100)):
        for name in "ab":
            rows = [
                {"sentence1": f"{WORDS[n % 10]} {start + n}", "sentence2": f"{WORDS[n % 7]} {n} {name}", "score": n % 5}
                for n in range(10)
            ]
            write_data_set(tmp_path / suite / f"{suite}_{name}", {"task": "sts"}, {"test.jsonl": rows})
    return Job.model_validate(
        {
            "encoder": str(tiny_model),
            "sources": [{"jsonl": tmp_path / "pairs.jsonl"}],
            "training": {"precision": "float32", "max_length": 12, "learning_rate": 1e-2},
            "evaluate_after": {"domain": str(tmp_path / "domain"), "general": str(tmp_path / "general")},
        }
    )


def test_a_training_compares_base_and_adapted_model_on_both_suites_and_counts_trained_inputs(job, tiny, tmp_path):
    outcome = run_training("pft", job, tiny, "cpu", tmp_path / "out", lambda *_: None)
    assert list(outcome.compared) == ["domain", "general"]
    domain, general = outcome.compared.values()
    assert [(task.task, task.category, task.seen) for task in domain.tasks] == [
        ("domain_a", "STS", 10),
        ("domain_b", "STS", 10),
    ]
    assert all(task.seen == 0 for task in general.tasks)
    assert any(task.base != task.adapted for task in domain.tasks)
    stored = orjson.loads((tmp_path / "out" / "comparison.json").read_bytes())
    assert stored["general"]["tasks"][0]["base"] == general.tasks[0].base
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Against the base model" in page and "inputs of 2 of these tasks were trained on" in page
    assert len(build_category_table(outcome.compared).cells) == 3 and len(build_task_table(outcome.compared).cells) == 5
    assert summarize_comparison(outcome.compared)[0].startswith("domain: ")
    with pytest.raises(JobError, match="holds a trained model already"):
        run_training("pft", job, tiny, "cpu", tmp_path / "out", lambda *_: None)
    (tmp_path / "out" / "comparison.json").unlink()
    again = run_training("pft", job, tiny, "cpu", tmp_path / "out", lambda *_: None)
    assert again.compared == outcome.compared and again.summary == outcome.summary


def test_an_unknown_suite_for_the_comparison_is_refused_before_the_training(job, tiny, tmp_path):
    wrong = job.model_copy(
        update={"evaluate_after": job.evaluate_after.model_copy(update={"general": "no-such-suite"})}
    )
    with pytest.raises(EvaluationError, match="no-such-suite"):
        run_training("pft", wrong, tiny, "cpu", tmp_path / "out", lambda *_: None)
    assert not (tmp_path / "out" / "training").exists()
