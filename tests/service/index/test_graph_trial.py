"""Trials of graphs over sampled vectors, from which the index of an advice is planned."""

import pytest

from lathe.service.index.graph_trial import measure_graph
from lathe.service.index.reducer import normalize_rows
from lathe.training.advice.index_plan import find_nearest
from lathe.transforms import Chain, parse_steps

pytest.importorskip("faiss")

K = 10


@pytest.fixture(scope="module")
def trials(biased):
    """Return trials of graphs over 960 vectors of 16 dimensions, by codes and links."""
    rows = normalize_rows(biased(1200, 5))
    base, queries = rows[:960], rows[960:]
    truth = find_nearest(queries, base, K)
    codes = Chain(parse_steps("r2,codes:4")).fit(base)
    return {
        (name, m): measure_graph(chain, m, base, queries, truth, K)
        for name, chain in (("none", None), ("codes", codes))
        for m in (8, 16)
    }


def test_a_trial_measures_bytes_of_the_graph_and_of_the_row_files(trials):
    memory = {key: trial.memory for key, trial in trials.items()}
    assert 4 * 16 + 4 * 32 <= memory["none", 16] < 4 * 16 + 4 * 32 + 40
    assert 4 + 4 * 32 <= memory["codes", 16] < 4 + 4 * 32 + 40
    assert memory["codes", 8] < memory["codes", 16]
    assert {key[0]: trial.disk for key, trial in trials.items()} == {"none": 4 * 16 + 2 * 16, "codes": 4 + 2 * 16}
    assert all(trial.rows == 960 and trial.build_seconds > 0 for trial in trials.values())


def test_more_effort_and_more_rescored_candidates_find_no_less(trials):
    for trial in trials.values():
        for (ef, rescore), (recall, microseconds) in trial.found.items():
            assert 0 < recall <= 1 and microseconds > 0 and ef >= K * rescore
            assert trial.found.get((2 * ef, rescore), (1, 0))[0] >= recall - 0.02
            assert trial.found.get((ef, 2 * rescore), (1, 0))[0] >= recall - 1e-9


def test_vectors_without_a_chain_are_not_rescored(trials):
    assert {rescore for _, rescore in trials["none", 8].found} == {1}
    assert {rescore for _, rescore in trials["codes", 8].found} == {1, 2, 4, 8, 16}
