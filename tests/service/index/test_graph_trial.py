"""Trials of graphs over sampled vectors, from which the index of an advice is planned."""

import pytest

from lathe.service.index.graph_trial import measure_graph
from lathe.service.index.reducer import normalize_rows
from lathe.training.advice.index_plan import find_nearest
from lathe.transforms import Chain, parse_steps

pytest.importorskip("faiss")


def test_a_trial_measures_bytes_and_finds_no_less_with_more_effort_and_candidates(biased):
    """Vectors without a chain are not rescored."""
    rows = normalize_rows(biased(1200, 5))
    base, queries = rows[:960], rows[960:]
    codes = Chain(parse_steps("r2,codes:4")).fit(base)
    for chain, row_bytes, rescores in ((None, 4 * 16, {1}), (codes, 4, {1, 2, 4, 8, 16})):
        trial = measure_graph(chain, 16, base, queries, find_nearest(queries, base, 10), 10)
        assert trial.rows == 960 and trial.build_seconds > 0 and trial.disk == row_bytes + 2 * 16
        assert row_bytes + 4 * 32 <= trial.memory < row_bytes + 4 * 32 + 40
        assert {rescore for _, rescore in trial.found} == rescores
        for (ef, rescore), (recall, microseconds) in trial.found.items():
            assert 0 < recall <= 1 and microseconds > 0 and ef >= 10 * rescore
            assert trial.found.get((2 * ef, rescore), (1, 0))[0] >= recall - 0.02
            assert trial.found.get((ef, 2 * rescore), (1, 0))[0] >= recall - 1e-9
