"""Plans: what is measured on a sample, what is expected of more rows, and what is chosen."""

from dataclasses import replace

import numpy as np
import pytest

from lathe.service.errors import BadValueError
from lathe.service.index.planning import (
    Candidate,
    Trial,
    choose_setting,
    extrapolate,
    fit_candidates,
    format_bytes,
    list_best,
    measure_settings,
    split_queries,
)
from lathe.service.index.spec import IndexSpec
from lathe.transforms.progress import no_progress

pytest.importorskip("faiss")

RAW = IndexSpec(None, None, 16, "raw", "none", 16, "raw")


@pytest.fixture(scope="module")
def candidates(chain_of, coded_spec):
    """Return vectors as they are, and codes of four bytes."""
    _, artifact = chain_of("r2,codes:4")
    return [Candidate("none", RAW, None), Candidate("codes:4", coded_spec(), artifact, 4)]


@pytest.fixture(scope="module")
def settings(candidates, biased):
    """Return what is expected of an index of a million rows, measured on 960."""
    return measure_settings(candidates, *split_queries(biased(1200, 5)), 1_000_000, 10, no_progress)


def test_a_plan_expects_less_recall_and_more_time_of_more_rows_and_memory_in_proportion(settings):
    assert {(one.chain, one.m) for one in settings} == {(chain, m) for chain in ("none", "codes:4") for m in (8, 16)}
    for one in settings:
        assert 0 < one.recall <= one.sampled_recall + 1e-3 and one.microseconds > 0 and one.build_seconds > 0
        assert one.ef >= 10 * one.rescore
    memory = {(one.chain, one.m): one.memory / 1e6 for one in settings}
    assert 4 * 16 + 4 * 32 <= memory["none", 16] < 4 * 16 + 4 * 32 + 40
    assert 4 + 4 * 32 <= memory["codes:4", 16] < 4 + 4 * 32 + 40
    assert memory["codes:4", 8] < memory["codes:4", 16]
    assert {one.disk / 1e6 for one in settings} == {4 * 16 + 2 * 16, 4 + 2 * 16}


def test_more_effort_and_more_rescored_candidates_find_no_less(settings):
    found = {(one.chain, one.m, one.ef, one.rescore): one.sampled_recall for one in settings}
    for (chain, m, ef, rescore), recall in found.items():
        assert found.get((chain, m, 2 * ef, rescore), 1) >= recall - 0.02
        assert found.get((chain, m, ef, 2 * rescore), 1) >= recall - 1e-9


def test_recall_is_extrapolated_by_its_logit_and_time_by_the_logarithm_of_rows(candidates):
    few = Trial(1000, 200.0, 100, 1.0, {(40, 1): (0.98, 100.0), (80, 1): (0.9, 300.0)})
    more = Trial(10_000, 200.0, 100, 10.0, {(40, 1): (0.95, 150.0), (80, 1): (0.95, 200.0)})
    first, second = extrapolate(candidates[0], 16, (few, more), 100_000)
    odds = 0.95 / 0.05 * (0.95 / 0.05) / (0.98 / 0.02)
    assert first.recall == pytest.approx(odds / (1 + odds))
    assert (first.microseconds, first.memory, first.disk) == (200.0, 20_000_000, 10_000_000)
    assert first.build_seconds == pytest.approx(100)
    assert (second.recall, second.microseconds) == (pytest.approx(0.95), 200.0)  # more rows improve nothing


def test_the_fastest_setting_within_the_memory_is_chosen_or_without_a_limit_the_smallest(settings):
    base = settings[0]
    small = replace(base, chain="small", memory=10, recall=0.96, microseconds=500)
    medium = replace(base, chain="medium", memory=20, recall=0.97, microseconds=300)
    large = replace(base, chain="large", memory=99, recall=0.99, microseconds=100)
    offered = [small, medium, large]
    assert choose_setting(offered, 0.95, None) is small
    assert choose_setting(offered, 0.95, 50) is medium
    assert choose_setting(offered, 0.95, 100) is large
    assert choose_setting(offered, 0.98, None) is large
    with pytest.raises(BadValueError, match=r"0\.98 within 50 B: medium .* reaches 0\.970 with 20 B; 0\.98 takes 99 B"):
        choose_setting(offered, 0.98, 50)
    with pytest.raises(BadValueError, match="the smallest graph, small with 8 links, takes 10 B"):
        choose_setting([replace(one, m=8) for one in offered], 0.5, 5)
    with pytest.raises(BadValueError, match=r"recall 0\.999: large .* reaches 0\.990"):
        choose_setting(offered, 0.999, None)
    slow = replace(small, microseconds=900, recall=0.98)
    assert list_best([slow, small, medium], 0.95) == [small, medium]
    assert list_best([slow, small, medium], 0.99) == [slow, medium]


def test_fitted_candidates_are_codes_that_take_no_more_bytes_than_dimensions(biased):
    vectors = np.tile(biased(1500, 1), (1, 2)) + 0.1 * np.random.default_rng(0).normal(size=(1500, 32))
    found = list(fit_candidates(vectors.astype(np.float32)))
    assert [(one.chain, one.fitted_bytes) for one in found] == [("none", None), ("codes:24", 24), ("codes:32", 32)]


def test_a_fifth_of_a_small_sample_searches_and_a_smaller_one_is_refused(biased):
    base, queries = split_queries(biased(1500, 5))
    assert (len(base), len(queries)) == (1200, 300)
    with pytest.raises(BadValueError, match="1,000 distinct rows, the source has 900"):
        split_queries(biased(900, 5))


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (14_130_000, "14.1 MB"), (2.5e13, "25 TB")])
def test_bytes_are_formatted_with_decimal_units(count, text):
    assert format_bytes(count) == text
