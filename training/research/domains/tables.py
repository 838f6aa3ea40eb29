"""Tables of a comparison, as rows of cells with the header first."""

from training.research.domains.characteristics import MEASURES, Characteristics
from training.research.domains.comparison import Comparison
from training.research.domains.similarity import SimilarityMap

Rows = list[list[str]]
"""Rows of cells as text; the first row is the header."""
NONE = "–"
"""Content of an empty cell."""


def tables(comparison: Comparison) -> dict[str, Rows]:
    """Return all tables of a comparison, by caption; tables without data are left out."""
    found = short_tables(comparison)
    if comparison.texts:
        found["What the texts of each data set are like"] = data_set_rows(comparison)
    if comparison.similarity is not None:
        found["Cosines of mean embeddings"] = cosine_rows(comparison.similarity)
    return found


def short_tables(comparison: Comparison) -> dict[str, Rows]:
    """Return the tables that fit into a terminal, by caption; tables without data are left out."""
    found = {}
    if comparison.rankings:
        found["Rank correlation of encoders between the suites"] = ranking_rows(comparison)
        found["Mean score × 100 of each encoder"] = mean_rows(comparison)
    if any(one.sources for one in comparison.two_ways):
        found["Variance of samples' scores: encoder and domain"] = variance_rows(comparison)
    if comparison.one_ways:
        found["Do encoders differ: one-way analysis over data sets"] = one_way_rows(comparison)
    if comparison.tests:
        found["Paired t-tests of encoders over data sets, in points"] = test_rows(comparison)
    if any(comparison.suite_texts):
        found["What the texts are like"] = text_rows(comparison)
    if comparison.similarity is not None:
        found["Mean cosine of data sets"] = level_rows(comparison)
    return found


def ranking_rows(comparison: Comparison) -> Rows:
    """Build the rows of the rank correlations: ρ, p, the smallest significant |ρ|, the split-half ρ of each suite."""
    halves = [f"ρ of halves of {title}" for title in comparison.titles]
    rows = [["type", "encoders", "ρ", "p", "least |ρ| with p ≤ .05", *halves]]
    for one in comparison.rankings:
        p = NONE if one.p is None else f"{one.p:.3f}"
        figures = [number(value) for value in (one.detectable, *one.within)]
        rows.append([one.type, str(len(one.encoders)), number(one.rho), p, *figures])
    return rows


def mean_rows(comparison: Comparison) -> Rows:
    """Build the rows of the mean scores × 100 of each encoder in both suites, which the rank correlations compare."""
    rows = [["type", "encoder", *comparison.titles]]
    for one in comparison.rankings:
        for encoder, *means in zip(one.encoders, *one.means, strict=True):
            rows.append([one.type, encoder, *(f"{100 * mean:.2f}" for mean in means)])
    return rows


def variance_rows(comparison: Comparison) -> Rows:
    """Build the rows of the two-way analyses of variance, one row per task type and factor."""
    rows = [["type", "factor", "share of variance", "sum of squares", "degrees", "F", "p", "encoders left out"]]
    for one in comparison.two_ways:
        left_out = ", ".join(one.left_out) or NONE
        for source in one.sources:
            f, p = (NONE, NONE) if source.f is None or source.p is None else (f"{source.f:.1f}", f"{source.p:.2g}")
            squares, degrees = f"{source.sum_of_squares:.3f}", f"{source.degrees:.0f}"
            rows.append([one.type, source.name, f"{100 * source.share:.1f} %", squares, degrees, f, p, left_out])
    return rows


def one_way_rows(comparison: Comparison) -> Rows:
    """Build the rows of the one-way analyses of variance, one per suite and task type; "–" where there is no test."""
    rows = [["suite", "type", "encoders", "data sets", "F", "p"]]
    for one in comparison.one_ways:
        p = NONE if one.p is None else f"{one.p:.3f}"
        counts = str(one.encoders), str(one.tasks)
        rows.append([comparison.titles[one.suite], one.type, *counts, number(one.f), p])
    return rows


def test_rows(comparison: Comparison) -> Rows:
    """Build the rows of the paired t-tests of encoders, with differences in points."""
    rows = [["suite", "type", "encoder", "against", "data sets", "difference", "t", "p"]]
    for one in comparison.tests:
        t = NONE if one.test.t is None else f"{one.test.t:+.2f}"
        p = NONE if one.test.p is None else f"{one.test.p:.3f}"
        cells = one.type, one.encoder, one.other, str(one.test.n), f"{one.test.mean:+.2f}"
        rows.append([comparison.titles[one.suite], *cells, t, p])
    return rows


def text_rows(comparison: Comparison) -> Rows:
    """Build the rows of the text measures, averaged over the data sets of each suite."""
    rows = [["suite", *text_header(comparison)]]
    for title, one in zip(comparison.titles, comparison.suite_texts, strict=True):
        if one is not None:
            rows.append([title, *measured(one)])
    return rows


def data_set_rows(comparison: Comparison) -> Rows:
    """Build the rows of the text measures of each data set."""
    rows = [["data set", "suite", "language", *text_header(comparison)]]
    for one in comparison.texts:
        rows.append([one.name, comparison.titles[one.suite], one.language, *measured(one.characteristics)])
    return rows


def text_header(comparison: Comparison) -> list[str]:
    """Return the column names of the text measures; the token column names the encoder of the tokenizer."""
    named = {"tokens_per_text": f"tokens per text ({comparison.tokenizer})"} if comparison.tokenizer else {}
    return ["texts", *(named.get(name, name.replace("_", " ")) for name in MEASURES)]


def measured(one: Characteristics) -> list[str]:
    """Return the number of texts and all text measures as cells."""
    return [f"{one.texts:,}", *(number(getattr(one, name)) for name in MEASURES)]


def level_rows(comparison: Comparison) -> Rows:
    """Build the rows of the mean cosines within and between the suites, raw and without the common direction."""
    found = comparison.similarity
    assert found is not None
    rows = [["embeddings", *(f"within {title}" for title in comparison.titles), "between"]]
    for name, cosines in (("as they are", found.raw), ("without the common direction", found.centred)):
        if cosines is not None:
            rows.append([name, *(number(value) for value in (*cosines.within, cosines.between))])
    return rows


def cosine_rows(found: SimilarityMap) -> Rows:
    """Build the rows of the raw cosines between every two data sets."""
    rows = [["data set", *found.names]]
    return rows + [[name, *map(number, row)] for name, row in zip(found.names, found.raw.matrix.tolist(), strict=True)]


def number(value: float | None) -> str:
    """Format a value with two decimals, or as "–" if it is None."""
    return NONE if value is None else f"{value:.2f}"
