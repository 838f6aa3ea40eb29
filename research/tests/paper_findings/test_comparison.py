import numpy as np
import pytest

from research.paper_findings import comparison
from research.paper_findings.statistics import bootstrap, paired_test

PANEL = """
e5-small 0.8579 -1.02 -1.15
rubert-tiny-turbo 0.8570 +6.09 +6.05
multilingual-e5-small 0.8543 +2.87 +2.90
multilingual-e5-large-instruct 0.8491 +7.94 +8.01
e5-small-v2 0.8464 +0.12 +0.15
sentence-t5-base 0.8399 -4.00 -3.77
e5-base 0.8357 +4.80 +4.98
e5-base-v2 0.8297 +1.72 +1.74
granite-embedding-125m-english 0.8242 +2.17 +2.27
bge-base-en 0.8237 +9.34 +9.55
GIST-all-MiniLM-L6-v2 0.8154 +6.02 +6.10
sentence-t5-large 0.8110 -5.08 -4.44
LaBSE-ru-turbo 0.8039 +4.79 +4.86
snowflake-arctic-embed-xs 0.8023 +9.18 +9.32
rubert-tiny2 0.7997 +2.46 +2.87
jina-embeddings-v2-base-en 0.7972 -0.29 -0.29
snowflake-arctic-embed-m-long 0.7941 +8.09 +8.17
snowflake-arctic-embed-s 0.7826 +10.16 +10.39
GIST-small-Embedding-v0 0.7716 +1.57 +1.82
snowflake-arctic-embed-m 0.7592 +9.10 +9.54
GIST-Embedding-v0 0.7447 +1.52 +1.63
MedEmbed-small-v0.1 0.7225 +2.59 +3.24
granite-embedding-107m-multilingual 0.7078 -4.26 -4.11
granite-embedding-30m-english 0.6907 +1.63 +1.65
granite-embedding-278m-multilingual 0.6882 -3.21 -2.35
gte-multilingual-base 0.6341 +3.25 +3.59
bge-small-en-v1.5 0.6222 +5.32 +5.86
snowflake-arctic-embed-m-v1.5 0.6221 +10.00 +10.44
Wartortle 0.6155 -2.21 -1.99
paraphrase-multilingual-MiniLM-L12-v2 0.6028 +1.62 +3.56
Squirtle 0.5954 -1.74 -1.16
nomic-embed-text-v1 0.5929 -2.00 -1.06
bge-base-en-v1.5 0.5883 +5.00 +5.52
USER-base 0.5039 -1.49 -0.42
LaBSE-en-ru 0.4115 -1.51 +2.59
potion-multilingual-128M 0.3450 -8.90 +2.70
potion-base-8M 0.2301 -3.20 +1.04
all-MiniLM-L6-v2 0.1895 +3.00 +3.64
"""
"""Of the mean-bias paper: ‖μ‖ (its Table 12), then t of R1 and of R2 over the retrieval tasks (its Table 4)."""

MIXED = {f"r{i}": "Retrieval" for i in range(5)} | {f"c{i}": "Classification" for i in range(5)}


def build_scores_with_t(t, tasks):
    """Return scores with and without a method whose differences have the paired t."""
    control, noise = np.linspace(0.3, 0.6, tasks), np.resize([0.001, -0.001], tasks)
    noise -= noise.mean()
    return control + noise + t * noise.std(ddof=1) / np.sqrt(tasks), control


@pytest.fixture(scope="module")
def panel(grid_of, table):
    """Return the grid and cells of the 38 encoders of the mean-bias paper, with six retrieval tasks each."""
    values, norms, families = {}, {}, {}
    tasks = [f"task {i}" for i in range(6)]
    for line in PANEL.split("\n")[1:-1]:
        name, norm, *t = line.split()
        (r1, control), (r2, _) = (build_scores_with_t(float(each), len(tasks)) for each in t)
        values |= table(name, tasks, control=control, R1=r1, R2=r2)
        norms[name], families[name] = float(norm), name.partition("-")[0]
    grid = grid_of(values, dict.fromkeys(tasks, "Retrieval"), norms=norms, families=families)
    return grid, comparison.compare_with_raw(grid, ["R1", "R2"])


def test_summarize_families_reproduces_table_1_of_the_mean_bias_paper(panel):
    grid, cells = panel
    row = next(row for row in comparison.summarize_families(grid, cells) if row.label == "R2")
    assert (row.family, row.all.encoders) == ("Retrieval", 38)
    assert (row.all.wins, row.all.ties, row.all.losses) == (22, 12, 4)
    assert row.all.mean_t == pytest.approx(2.99, abs=0.01)
    assert row.without["snowflake"].mean_t == pytest.approx(1.99, abs=0.01)


def test_average_by_norm_reproduces_table_3_of_the_mean_bias_paper(panel):
    bins = comparison.average_by_norm(*panel, "R2")
    assert [row["bin"] for row in bins] == ["[0.00, 0.30)", "[0.30, 0.60)", "[0.60, 0.75)", "[0.75, 1.05)"]
    assert [row["encoders"] for row in bins] == [2, 6, 10, 20]
    assert [row["Retrieval"] for row in bins] == pytest.approx([2.34, 1.36, 2.15, 3.95], abs=0.01)


def test_count_head_to_head_reproduces_table_4_of_the_mean_bias_paper(panel):
    found = comparison.count_head_to_head(panel[1], "R2", "R1")
    assert found == {"Retrieval": {"ahead": 35, "behind": 2, "of": 38}}  # one has the same t to two digits
    assert comparison.count_head_to_head(panel[1], "R1", "R2")["Retrieval"]["ahead"] == 2


def test_compare_with_raw_averages_the_seeds_of_a_random_direction_and_gives_their_spread(grid_of):
    """The mean-bias paper's Appendix F: four random directions on snowflake-arctic-embed-m, in points."""
    seeds = {42: 0.0015, 2: 0.0009, 3: 0.0072, 4: 0.0106}
    values = {("e", "control", task): raw for task, raw in (("a", 0.4), ("b", 0.6))}
    values |= {
        ("e", f"random, seed {s}", t): values["e", "control", t] + d / 100 for s, d in seeds.items() for t in "ab"
    }
    values |= {("e", "R2", task): 0.5 for task in "ab"}
    cells = {cell.label: cell for cell in comparison.compare_with_raw(grid_of(values), ["random direction", "R2"])}
    assert round(cells["random direction"].difference.value, 3) == 0.005
    assert round(cells["random direction"].spread, 3) == 0.005
    assert cells["R2"].spread is None


def test_compare_with_raw_counts_only_tasks_that_every_method_completed(grid_of, table):
    values = table("e", "abcd", control=[0.5, 0.5, 0.5, None], R1=[0.6, None, 0.8, 0.9], R2=[0.7, 0.9, 0.5, 0.9])
    del values["e", "R2", "c"]
    cells = {cell.label: cell for cell in comparison.compare_with_raw(grid_of(values), ["R1", "R2"])}
    assert {label: cell.tasks for label, cell in cells.items()} == {"R1": 1, "R2": 1}
    assert cells["R1"].difference.value == pytest.approx(10)
    assert cells["R2"].difference.value == pytest.approx(20)
    assert cells["R2"].test.n == 1


def test_a_cell_holds_the_bootstrap_interval_and_the_paired_tests_of_its_differences(grid_of, table):
    raw, after = np.linspace(0.1, 0.8, 10), np.linspace(0.1, 0.8, 10) ** 0.9
    (cell,) = comparison.compare_with_raw(grid_of(table("e", MIXED, control=raw, R2=after), MIXED), ["R2"])
    assert cell.difference == bootstrap(100 * (after - raw))
    assert cell.families == cell.types
    assert cell.families["Retrieval"] == paired_test(after[:5], raw[:5])
    assert cell.families["Classification"] == paired_test(after[5:], raw[5:])
    assert cell.test == paired_test(after, raw)


def test_summarize_families_counts_encoders_with_at_least_five_tasks_of_a_family(grid_of, table):
    raw, few = [0.5] * 10, [name for name in MIXED if name != "r0"]
    values = table("five", MIXED, control=raw, R2=np.linspace(0.6, 0.7, 10))
    values |= table("four", few, control=raw[1:], R2=np.linspace(0.3, 0.2, 9))
    grid = grid_of(values, MIXED)
    rows = {row.family: row for row in comparison.summarize_families(grid, comparison.compare_with_raw(grid, ["R2"]))}
    assert (rows["Retrieval"].all.encoders, rows["Retrieval"].all.wins, rows["Retrieval"].all.losses) == (1, 1, 0)
    assert (
        rows["Classification"].all.encoders,
        rows["Classification"].all.wins,
        rows["Classification"].all.losses,
    ) == (2, 1, 1)


def test_average_differences_uses_tasks_that_all_encoders_completed(grid_of, table):
    values = table("one", "abc", control=[0.5, 0.5, 0.5], R2=[0.6, 0.7, 0.9])
    values |= table("two", "abc", control=[0.5, 0.5, 0.5], R2=[0.5, 0.8, None])
    found = comparison.average_differences(grid_of(values), ["R2"])
    expected = bootstrap(np.array([[10.0, 0.0], [20.0, 30.0]]))
    assert expected.value == 15
    assert (found["R2"].value, found["R2"].low) == pytest.approx((expected.value, expected.low))
