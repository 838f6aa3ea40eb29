"""Tables of a comparison."""

from typing import Any

from lathe.training.reporting.tables import Table
from research.domains.characteristics import MEASURES, Characteristics
from research.domains.comparison import Comparison


def build_tables(comparison: Comparison) -> dict[str, Table]:
    """Build all tables of a comparison, by title.

    Tables without rows are left out.
    """
    long = {
        "What the texts of each data set are like": _build_data_set_table(comparison),
        "Cosines of mean embeddings": _build_cosine_table(comparison),
    }
    return build_short_tables(comparison) | {title: table for title, table in long.items() if table}


def build_short_tables(comparison: Comparison) -> dict[str, Table]:
    """Build the tables that fit into a terminal, by title.

    Tables without rows are left out.
    """
    tables = {
        "Rank correlation of encoders between the suites": _build_ranking_table(comparison),
        "Mean score × 100 of each encoder": _build_mean_table(comparison),
        "Variance of samples' scores: encoder and domain": _build_variance_table(comparison),
        "Do encoders differ: one-way analysis over data sets": _build_one_way_table(comparison),
        "Paired t-tests of encoders over data sets, in points": _build_test_table(comparison),
        "What the texts are like": _build_text_table(comparison),
        "Mean cosine of data sets": _build_mean_cosine_table(comparison),
    }
    return {title: table for title, table in tables.items() if table}


def _build_ranking_table(comparison: Comparison) -> Table:
    """Build the table of rank correlations: ρ, p, the smallest significant |ρ|, the split-half ρ of each suite."""
    halves = [f"ρ of halves of {title}" for title in comparison.titles]
    return Table.from_records(
        (
            {"type": one.type, "encoders": len(one.encoders), "ρ": one.rho, "p": one.p}
            | {"least |ρ| with p ≤ .05": one.detectable}
            | dict(zip(halves, one.within, strict=True))
            for one in comparison.rankings
        ),
        {"encoders": "d", "p": ".3f"},
        ".2f",
    )


def _build_mean_table(comparison: Comparison) -> Table:
    """Build the table of mean scores × 100 of each encoder in both suites, which the rank correlations compare."""
    return Table.from_records(
        (
            {"type": one.type, "encoder": encoder}
            | {title: 100 * mean for title, mean in zip(comparison.titles, means, strict=True)}
            for one in comparison.rankings
            for encoder, *means in zip(one.encoders, *one.means, strict=True)
        ),
        default=".2f",
    )


def _build_variance_table(comparison: Comparison) -> Table:
    """Build the table of the two-way analyses of variance, one row per task type and factor."""
    return Table.from_records(
        (
            {"type": one.type, "factor": source.name, "share of variance": f"{100 * source.share:.1f} %"}
            | {"sum of squares": source.sum_of_squares, "degrees": source.degrees, "F": source.f, "p": source.p}
            | {"encoders left out": ", ".join(one.left_out) or None}
            for one in comparison.two_ways
            for source in one.sources
        ),
        {"sum of squares": ".3f", "degrees": ".0f", "F": ".1f", "p": ".2g"},
    )


def _build_one_way_table(comparison: Comparison) -> Table:
    """Build the table of the one-way analyses of variance, one row per suite and task type."""
    return Table.from_records(
        (
            {"suite": comparison.titles[one.suite], "type": one.type, "encoders": one.encoders}
            | {"data sets": one.tasks, "F": one.f, "p": one.p}
            for one in comparison.one_ways
        ),
        {"F": ".2f", "p": ".3f"},
    )


def _build_test_table(comparison: Comparison) -> Table:
    """Build the table of the paired t-tests of encoders, with differences in points."""
    return Table.from_records(
        (
            {"suite": comparison.titles[one.suite], "type": one.type, "encoder": one.encoder, "against": one.other}
            | {"data sets": one.test.n, "difference": one.test.mean, "t": one.test.t, "p": one.test.p}
            for one in comparison.tests
        ),
        {"difference": "+.2f", "t": "+.2f", "p": ".3f"},
    )


def _build_text_table(comparison: Comparison) -> Table:
    """Build the table of the text measures, averaged over the data sets of each suite."""
    return Table.from_records(
        (
            {"suite": title} | _list_measures(one, comparison)
            for title, one in zip(comparison.titles, comparison.suite_texts, strict=True)
            if one is not None
        ),
        {"texts": ","},
        ".2f",
    )


def _build_data_set_table(comparison: Comparison) -> Table:
    """Build the table of the text measures of each data set."""
    return Table.from_records(
        (
            {"data set": one.name, "suite": comparison.titles[one.suite], "language": one.language}
            | _list_measures(one.characteristics, comparison)
            for one in comparison.texts
        ),
        {"texts": ","},
        ".2f",
    )


def _list_measures(one: Characteristics, comparison: Comparison) -> dict[str, Any]:
    """Return the text measures by column name.

    The token column names the encoder of the tokenizer.
    """
    named = {"tokens_per_text": f"tokens per text ({comparison.tokenizer})"} if comparison.tokenizer else {}
    return {"texts": one.texts} | {named.get(name, name.replace("_", " ")): getattr(one, name) for name in MEASURES}


def _build_mean_cosine_table(comparison: Comparison) -> Table:
    """Build the table of mean cosines within and between the suites, raw and without the common direction."""
    found = comparison.similarity
    maps = {"as they are": found.raw, "without the common direction": found.centred} if found else {}
    return Table.from_records(
        (
            {"embeddings": name}
            | {f"within {title}": mean for title, mean in zip(comparison.titles, cosines.within, strict=True)}
            | {"between": cosines.between}
            for name, cosines in maps.items()
            if cosines is not None
        ),
        default=".2f",
    )


def _build_cosine_table(comparison: Comparison) -> Table:
    """Build the table of the raw cosines between every two data sets, a row and column for each.

    The result is empty without cosines. Column names may repeat, because both suites may use a name.
    """
    found = comparison.similarity
    rows = [[name, *row] for name, row in zip(found.names, found.raw.matrix.tolist(), strict=True)] if found else []
    return Table.from_rows([["data set", *(found.names if found else ())], *rows], default=".2f")
