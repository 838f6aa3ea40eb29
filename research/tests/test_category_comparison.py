import pytest
from scipy import stats

from research.category_comparison import TaskScores, compare_categories


def test_compare_categories_tests_pairs_by_category_with_holms_correction():
    scores = {
        "Retrieval": [(0.5, 0.55), (0.6, 0.68), (0.4, 0.46)],
        "STS": [(0.7, 0.6), (0.8, 0.75)],
        "Clustering": [(0.3, 0.3)],
    }
    tasks = [
        TaskScores(f"{name}{n}", name, base, adapted)
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
