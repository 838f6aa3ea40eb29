"""Sentences about a comparison: what holds, and what so few data cannot tell."""

import re
from collections.abc import Iterator, Sequence

from training.reporting.text import format_count, format_p_value
from training.research.domains.characteristics import Characteristics
from training.research.domains.comparison import Comparison
from training.research.domains.ranking import LEVEL, MAX_EXACT, RankCorrelation
from training.research.domains.samples import SAMPLE_EXAMPLES, SAMPLES
from training.research.domains.similarity import Cosines
from training.research.domains.variance import TwoWay

SHARES = ("encoder", "domain", "encoder × domain")
"""Names of the variance rows that are reported, in the order of the sentence."""
DIFFERENCES = {
    "words_per_sentence": "words in a sentence",
    "characters_per_word": "characters in a word",
    "tokens_per_text": "tokens in a text",
    "syllables_per_word": "syllables in a word",
    "type_token_ratio": "type-token ratio",
    "dependency_distance": "words from a word to its head",
}
"""Wording of each text measure that the sentence on texts compares, by field name."""


def summarize_comparison(comparison: Comparison) -> list[str]:
    """Return all sentences about a comparison, in reading order."""
    return [
        *describe_overlap(comparison),
        *describe_languages(comparison),
        *describe_rankings(comparison),
        *describe_variance(comparison),
        *describe_encoder_tests(comparison),
        *describe_texts(comparison),
        *describe_similarity(comparison),
    ]


def describe_overlap(comparison: Comparison) -> Iterator[str]:
    """Yield a sentence if the suites share no task type, and one if they share data sets."""
    first, second = comparison.titles
    if not set(comparison.types[0]) & set(comparison.types[1]):
        types = [", ".join(some) or "none" for some in comparison.types]
        yield (
            f"The suites have no type of task in common ({first}: {types[0]}; {second}: {types[1]}), so that neither "
            "rankings nor variance can be compared; their texts can."
        )
    if comparison.shared:
        is_or_are = "is" if len(comparison.shared) == 1 else "are"
        yield (
            f"{format_count(len(comparison.shared), 'data set')} of {first} {is_or_are} in {second} too, "
            f"which makes the suites look alike: {', '.join(comparison.shared)}."
        )


def describe_languages(comparison: Comparison) -> Iterator[str]:
    """Yield a warning if the two suites differ in their languages."""
    first, second = (list_languages(comparison, side) for side in (0, 1))
    if first and second and first != second:
        told = "; ".join(
            f"{title}: {', '.join(some)}" for title, some in zip(comparison.titles, (first, second), strict=True)
        )
        yield (
            f"The suites are not of the same languages ({told}): rank correlations, the variance and the map of the "
            "data sets mix domain and language."
        )


def list_languages(comparison: Comparison, side: int) -> list[str]:
    """Return the sorted languages of a suite's data sets; a code for several, such as `de-en` or `de,en`, is split."""
    named = {part for one in comparison.texts if one.suite == side for part in re.split("[-,]", one.language)}
    return sorted(named - {""})


def describe_rankings(comparison: Comparison) -> Iterator[str]:
    """Yield sentences on the rank correlations between the suites, how to read them, and their statistical power."""
    yield from _describe_problems("The ranking", comparison.rankings)
    for one in comparison.rankings:
        if one.rho is None or one.p is None:
            continue
        relation = "a relation" if one.p <= LEVEL else "no relation can be told"
        yield (
            f"Over {len(one.encoders)} encoders the ranking on {one.type} correlates at ρ = {one.rho:.2f} between the "
            f"suites: {relation} ({format_p_value(one.p)}){_format_split_half(one, comparison.titles)}."
        )
    known = [one for one in comparison.rankings if one.rho is not None]
    if len(known) > 1:
        yield (
            f"These are {len(known)} tests: where nothing is related, still up to one in twenty has p ≤ .05 by chance."
        )
    if any(_format_split_half(one, comparison.titles) for one in known):
        yield (
            "Read ρ between the suites beside those within: only one clearly lower speaks for another domain, the rest "
            "comes from the choice of data sets. A half has fewer of them than its suite and ranks less reliably, for "
            "which nothing is corrected (no Spearman–Brown)."
        )
    yield from (_describe_power(one) for _, one in sorted({len(one.encoders): one for one in known}.items()))


def _format_split_half(one: RankCorrelation, titles: tuple[str, str]) -> str:
    """Return the end of a sentence with the split-half ρ of each suite; "" if neither has one."""
    known = [f"ρ = {rho:.2f} ({title})" for rho, title in zip(one.within, titles, strict=True) if rho is not None]
    return f"; within a suite two halves of the data sets rank them alike at {' and '.join(known)}" if known else ""


def _describe_power(one: RankCorrelation) -> str:
    """Return a sentence on the smallest |ρ| that is significant with that number of encoders."""
    n = len(one.encoders)
    assert one.least_p is not None
    if one.detectable is None:
        told = f"even complete agreement (ρ = 1) has {format_p_value(one.least_p)}, so that no result can be told"
        return f"With {n} encoders {told} from chance at p ≤ .05: a high p here is no sign that the domains differ."
    how = "all orders are counted" if n <= MAX_EXACT else "p is that of Student's t"
    return (
        f"With {n} encoders only |ρ| ≥ {one.detectable:.2f} is told from chance at p ≤ .05 ({how}); a smaller one "
        "says neither that the rankings agree nor that they do not."
    )


def describe_variance(comparison: Comparison) -> Iterator[str]:
    """Yield sentences on the analyses of variance: impossible ones, encoders left out, shares, how to read them."""
    analysed = [one for one in comparison.two_ways if one.sources]
    yield from _describe_problems("The variance", comparison.two_ways)
    for one in comparison.two_ways:
        if one.left_out:
            them = ", ".join(one.left_out)
            yield f"The variance on {one.type} is without {them}: too few samples in one suite could be measured."
    for one in analysed:
        yield from _describe_variance_of_type(one, comparison.titles)
    if analysed:
        yield (
            f"The analysis of variance rests on {SAMPLES} samples of {SAMPLE_EXAMPLES} examples, drawn with "
            "replacement from one pool: they are not independent observations, so that every p is far too small, and "
            "the smaller the more are drawn. Look at the shares of the variance, not at p. A share of the domain says "
            "that one suite is harder, or scored differently; only the interaction says that another encoder is better "
            "there."
        )


def _describe_variance_of_type(one: TwoWay, titles: tuple[str, str]) -> Iterator[str]:
    """Yield sentences on one task type: the shares of the variance, pools smaller than a sample, unscored samples."""
    shares = {source.name: source.share for source in one.sources}
    encoder, domain, both = (f"{100 * shares[name]:.1f} %" for name in SHARES)
    yield (
        f"On {one.type}, {encoder} of the variance of samples' scores goes with the encoder, {domain} with the domain "
        f"and {both} with their interaction; the rest with which {SAMPLE_EXAMPLES} examples were drawn."
    )
    for title, size in zip(titles, one.examples or (), strict=False):
        if size < SAMPLE_EXAMPLES:
            yield f"{title} has {size} examples of {one.type} only, so that samples repeat them."
    if one.undefined:
        yield f"{format_count(one.undefined, 'sample')} of {one.type} had no score and were left out."


def _describe_problems(what: str, some: Sequence[RankCorrelation] | Sequence[TwoWay]) -> Iterator[str]:
    """Yield one sentence for each distinct problem, naming the task types that have it."""
    reasons: dict[str, list[str]] = {}
    for one in some:
        if one.problem is not None:
            reasons.setdefault(one.problem, []).append(one.type)
    for reason, types in reasons.items():
        yield f"{what} on {', '.join(types)} cannot be compared: {reason}."


def describe_encoder_tests(comparison: Comparison) -> Iterator[str]:
    """Yield sentences on how many one-way and paired tests of encoders are significant; none without tests."""
    tested = [one for one in comparison.one_ways if one.p is not None]
    if tested:
        low = [one for one in tested if one.p is not None and one.p <= LEVEL]
        told = ", ".join(f"{one.type} of {comparison.titles[one.suite]}" for one in low)
        yield (
            f"Taken as independent, the encoders' scores over data sets differ at p ≤ .05 in {len(low)} of "
            f"{len(tested)} types of the suites{': ' if told else ''}{told}. This test does not know that all "
            "encoders saw the same data sets, so it misses differences that the paired tests find."
        )
    known = [one.test.p for one in comparison.tests if one.test.p is not None]
    if known:
        lower = sum(p <= LEVEL for p in known)
        has_or_have = "has" if lower == 1 else "have"
        yield (
            f"{lower} of {format_count(len(known), 'paired test')} between encoders {has_or_have} p ≤ .05; "
            f"about {LEVEL * len(known):.1f} would by chance. "
            "The better encoder is picked by the scores it is tested on."
        )


def describe_texts(comparison: Comparison) -> Iterator[str]:
    """Yield a sentence that compares the text measures of both suites; none if a suite has no readable texts."""
    first, second = comparison.suite_texts
    if first is None or second is None:
        return
    parts = [part for name, called in DIFFERENCES.items() if (part := _compare_measure(name, called, first, second))]
    if parts:
        yield (
            f"Texts of {comparison.titles[0]} against {comparison.titles[1]}, each data set counting once: "
            f"{'; '.join(parts)}."
        )


def _compare_measure(name: str, called: str, first: Characteristics, second: Characteristics) -> str | None:
    """Return a phrase with both suites' values of a measure; None if a suite has no value.

    Args:
        name: field of `Characteristics`.
        called: wording of the measure.
        first: measures of the first suite.
        second: measures of the second suite.
    """
    values = getattr(first, name), getattr(second, name)
    return None if None in values else f"{values[0]:.2f} against {values[1]:.2f} {called}"


def describe_similarity(comparison: Comparison) -> Iterator[str]:
    """Yield sentences on the mean cosines within and between the suites, or one sentence if there are none."""
    found = comparison.similarity
    if found is None:
        yield "No map of the data sets: it takes an encoder other than the bag of words, and texts of two data sets."
        return
    raw = _format_levels(found.raw, comparison)
    yield f"Mean embeddings of data sets under {found.encoder} have a mean cosine of {raw}."
    if found.centred is None:
        yield "There are too few data sets to take away what all texts share, which these cosines are inflated by."
    else:
        centred = _format_levels(found.centred, comparison)
        yield (
            f"Without the direction that all data sets share (R2) it is {centred}. These "
            "average to about zero by construction: within above between is what tells the suites apart."
        )


def _format_levels(cosines: Cosines, comparison: Comparison) -> str:
    """Return the mean cosines within each suite and between the suites, as a phrase; missing ones are left out."""
    parts = [
        f"{value:.2f} within {title}"
        for title, value in zip(comparison.titles, cosines.within, strict=True)
        if value is not None
    ]
    parts += [] if cosines.between is None else [f"{cosines.between:.2f} between the suites"]
    return ", ".join(parts)
