"""Two suites with vectors behind them, compared in this process."""

from dataclasses import replace

import pytest

from lathe.training.evaluation.worker import load_task
from research.domains.compare import DomainComparison
from research.domains.plots import draw_all
from research.domains.summary import summarize_comparison
from research.domains.tables import build_tables
from research.encoders import BAG_OF_WORDS

ENCODERS = ("a", "b", BAG_OF_WORDS)
WORDS = {"money": "profit debt loan equity".split(), "plants": "tulip hedge fern moss".split()}


def run_jobs_here(jobs):
    """Run jobs in this process, the last first, since those of worker processes finish in any order."""
    for index, (work, arguments) in reversed(list(enumerate(jobs))):
        try:
            yield index, work(*arguments)
        except Exception as error:
            yield index, error


def compare_here(first, second):
    load_task.cache_clear()
    return DomainComparison(first.results, second.results, lambda fraction, message: None, run_jobs_here).run()


@pytest.fixture
def suites(tmp_path, write_data_set, evaluated):
    """Write two suites of two task types each, with vectors and scores."""
    found = []
    for name, words in WORDS.items():
        texts = [f"The {words[n % 4]} of {name} is number {n}." for n in range(60)]
        pairs = [{"sentence1": texts[n], "sentence2": texts[7 * n % 60], "score": n % 5} for n in range(60)]
        alike = [row | {"label": n % 2} for n, row in enumerate(pairs)]
        write_data_set(tmp_path / name / "pairs", {"task": "sts"}, {"test.jsonl": pairs})
        write_data_set(tmp_path / name / "more pairs", {"task": "sts"}, {"test.jsonl": pairs[:20]})
        write_data_set(tmp_path / name / "same", {"task": "pair_classification"}, {"test.jsonl": alike})
        found.append(evaluated(tmp_path / name, ENCODERS))
    return found


def test_run_computes_all_analyses_of_suites_that_can_be_read(suites):
    found = compare_here(*suites)
    assert found.problems == []
    assert [(one.type, one.examples) for one in found.two_ways] == [("STS", (80, 80)), ("PairClassification", (60, 60))]
    assert all(list(one.means) == list(ENCODERS) and len(one.sources) == 4 for one in found.two_ways)
    names = ["more pairs", "pairs", "same"]
    assert [(one.suite, one.name) for one in found.texts] == [(side, name) for side in (0, 1) for name in names]
    assert found.similarity.encoder == "a"
    assert found.similarity.names == (*names, *names)
    assert found.similarity.suites == (0, 0, 0, 1, 1, 1)
    assert min(found.similarity.centred.within) > 0.5 > -0.5 > found.similarity.centred.between
    assert found.tokenizer is None
    said = summarize_comparison(found)
    assert any(one.startswith("On STS, ") and "of the variance of samples' scores goes with" in one for one in said)
    assert any("not independent observations" in one for one in said)
    assert any(
        one.startswith("Texts of money against plants, each data set counting once: 7.00 against") for one in said
    )
    assert any(one.startswith("Without the direction that all data sets share (R2)") for one in said)
    assert len(draw_all(found)) == 3
    assert "Cosines of mean embeddings" in build_tables(found)


def test_mtebs_own_data_sets_are_not_sampled_and_are_named(suites):
    first, second = suites

    def as_mtebs(evaluated, *names):
        suite = evaluated.results.request.suite
        entries = tuple(replace(one, kind="mteb") if one.name in names else one for one in suite.entries)
        request = replace(evaluated.results.request, suite=replace(suite, entries=entries))
        evaluated.results = replace(evaluated.results, request=request)

    as_mtebs(first, "more pairs", "same")
    found = compare_here(first, second)
    assert [(one.type, one.examples) for one in found.two_ways] == [("STS", (60, 80)), ("PairClassification", None)]
    assert "mteb reads its own tasks itself" in found.two_ways[1].problem
    assert any(one.startswith("money: more pairs: not in the samples of STS, as mteb") for one in found.problems)
