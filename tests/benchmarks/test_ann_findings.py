import math

import pytest

from benchmarks.ann.findings import FAR, compute_findings
from benchmarks.ann.frontier import logit

SIZES = (1000, 4000, 16_000)
TARGETS = (0.9,)


def result(rows=1000, method="none", engine="hnswlib", seed=0, settings=((10, 1, 0.9, 100.0),), size=100, build=10.0):
    """Return a measured point. A setting is its effort, oversampling, recall and microseconds."""
    return {
        "seed": seed,
        "rows": rows,
        "method": method,
        "engine": engine,
        "m": 16 if engine == "hnswlib" else 0,
        "graph_bytes": size * rows,
        "build_seconds": build,
        "settings": [
            {"effort": effort, "oversampling": times, "recall": recall, "microseconds": time, "p99": 2 * time}
            for effort, times, recall, time in settings
        ],
        "concurrency": {},
    }


def by_series(costs):
    """Index costs by series, rows and target recall."""
    return {(cost.series, cost.rows, cost.target): cost for cost in costs}


def found_of(results, targets=TARGETS):
    return compute_findings(results, 32, targets, "flat")


@pytest.mark.parametrize(("factor", "exponent"), [(3.0, 0.25), (0.01, 1.0), (50.0, 0.0)])
def test_find_recovers_the_exponent_of_a_power_law_of_search_time(factor, exponent):
    results = [result(rows, settings=[(10, 1, 0.9, factor * rows**exponent)]) for rows in SIZES]
    (growth,) = found_of(results).growth
    assert growth.exponent == pytest.approx(exponent, abs=1e-9)
    assert any(time == pytest.approx(factor * FAR**exponent, rel=1e-6) for time in growth.far_microseconds)
    assert growth.measured == pytest.approx({rows: factor * rows**exponent for rows in SIZES})
    assert (growth.series, growth.target) == ("none · hnswlib", 0.9)


def test_costs_are_means_over_seeds_and_speeds_are_ratios_to_full_width_paired_by_seed():
    times = (100.0, 200.0, 400.0)
    full = [result(seed=seed, settings=[(10, 1, 0.95, time)]) for seed, time in enumerate(times)]
    ours = [
        result(seed=seed, method="pca:8", settings=[(40, 4, 0.95, time / 2)], size=25, build=4.0)
        for seed, time in enumerate(times)
    ]
    costs = by_series(found_of(full + ours).costs)
    base, cost = costs["none · hnswlib", 1000, 0.9], costs["pca:8, rescored · hnswlib", 1000, 0.9]
    assert base.speed is None and cost.speed.value == pytest.approx(2) and cost.speed.half == pytest.approx(0, abs=1e-9)
    assert base.microseconds.value == pytest.approx(700 / 3) and base.p99.value == pytest.approx(1400 / 3)
    assert (cost.graph_bytes, cost.build_seconds) == (25_000, 4)
    assert (cost.beside_bytes, base.beside_bytes) == (64, 0)  # float16 originals, for rescoring alone
    assert cost.setting == "M 16, ef 40, rescored 4×"


def test_recall_at_ten_million_rows_is_extrapolated_linearly_in_logits():
    def recall(times, rows):
        return 1 / (1 + math.exp(-(4 + times - 0.5 * math.log(rows))))

    results = [
        result(rows, "pca:8", "flat", seed, [(1, times, recall(times, rows), 1.0) for times in (1, 2, 4)])
        for rows in SIZES
        for seed in (0, 1)
    ]
    (depth,) = found_of([*results, result()]).depths
    assert depth.method == "pca:8"
    assert depth.recall[4][16_000] == pytest.approx(recall(4, 16_000))
    assert depth.far_recall == pytest.approx({times: recall(times, FAR) for times in (1, 2, 4)}, rel=1e-6)
    assert logit(depth.far_recall[1]) < logit(depth.recall[1][16_000])


def test_time_at_ten_million_rows_is_extrapolated_by_logarithm_and_power_or_linearly_if_exact():
    by_log = [result(rows, settings=[(10, 1, 0.9, 5 + 3 * math.log(rows))]) for rows in SIZES]
    least, most = found_of(by_log).growth[0].far_microseconds
    assert least == pytest.approx(5 + 3 * math.log(FAR)) and most > least
    exact = [result(rows, engine="flat", settings=[(1, 1, 0.9, rows**1.3)]) for rows in SIZES]
    (growth,) = found_of(exact).growth
    assert growth.far_microseconds == pytest.approx((SIZES[-1] ** 1.3 * FAR / SIZES[-1],) * 2)
