import pytest

from research.paper_findings import reductions

PARALLEL = {"stsb": "en", "stsb_de": "de", "stsb-fr": "fr"}


def build_reductions(table, sizes=(1, 2, 4, 6)):
    """Return scores and intrinsic measures of PCA reductions: similarities grow with the size, errors shrink."""
    values = table("e", "ab", control=[0.5, 0.5], **{f"pca:{size}": [0.05 * size, 0.06 * size] for size in sizes})
    measures = {
        ("e", f"pca:{size}"): {
            "local_spearman": size / 8,
            "positional": 1 / size,
            "angular": 8 - size**2,
            "recall_at_10": -float(size),
        }
        for size in sizes
    }
    return values, measures


def test_correlate_intrinsic_turns_the_sign_of_errors(grid_of, table):
    values, measures = build_reductions(table)
    found = reductions.correlate_intrinsic(grid_of(values, intrinsic=measures))
    assert {name: one.spearman.value for name, one in found.items()} == pytest.approx(
        {"local_spearman": 1, "positional": 1, "angular": 1, "recall_at_10": -1}
    )
    assert {one.n for one in found.values()} == {4}


def test_compare_languages_gives_retention_and_difference_from_english(grid_of, table):
    """R and Δ of the GeoPres paper (its Table 2), by hand."""
    values = table("e", PARALLEL, control=[0.8, 0.5, 0.4], **{"geopres:4": [0.6, 0.4, 0.2]})
    found = {one.language: one for one in reductions.compare_languages(grid_of(values, languages=PARALLEL))}
    assert {name: one.retention for name, one in found.items()} == pytest.approx({"de": 0.8, "fr": 0.5})
    assert {name: one.against_english for name, one in found.items()} == pytest.approx({"de": 0.05, "fr": -0.25})
    assert {(one.encoder, one.label, one.size, one.task) for one in found.values()} == {("e", "geopres", 4, "stsb")}


@pytest.mark.parametrize(
    "languages",
    [
        {"stsb_de": "de", "stsb_fr": "fr"},  # nothing in English
        {"stsb": "en", "sick_de": "de"},  # not the same data set
        {"stsb": "en", "stsb_de": "fr"},  # the name says another language than the suite
        {"stsb": "en", "all/stsb": "de-en"},  # translations
        {"stsb": "en", "all/stsb": "deu,fra"},  # several languages in one
    ],
)
def test_compare_languages_compares_only_versions_of_one_data_set_in_two_languages(grid_of, table, languages):
    values = table("e", languages, control=[0.5, 0.5], **{"geopres:4": [0.4, 0.3]})
    assert reductions.compare_languages(grid_of(values, languages=languages)) == []
