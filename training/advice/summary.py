"""Advice as plain sentences."""

from collections.abc import Iterator

from training.advice.advise import Advice
from training.advice.debiasing import LARGE_MEAN, NOTHING
from training.advice.matryoshka import MIN_LEAD, find_failing_cuts
from training.advice.sample_size import Shortage
from training.evaluation.statistics import Interval
from training.reporting.text import format_percent
from transforms.linear import MIN_MEAN_NORM

SMALL_MEAN = 0.2
"""‖μ‖ of unit vectors up to which it is called small."""
MIN_TRANSFER_DROP = 0.05
"""Drop in the preserved share, from held-out rows to out-of-domain text, from which on the chain is called specific to
the source."""


def summarize_advice(advice: Advice) -> list[str]:
    """Return all sentences of an advice: recommendation, mean direction, coordinates, transfer, sample size, notes."""
    parts = (
        describe_recommendation,
        describe_mean_direction,
        describe_first_coordinates,
        describe_transfer,
        describe_shortages,
    )
    return [*(sentence for part in parts for sentence in part(advice)), *advice.notes]


def describe_recommendation(advice: Advice) -> Iterator[str]:
    """Yield the recommended steps with reasons and cost, then the runner-up; one sentence if nothing is recommended."""
    best, second = advice.best, advice.second
    if best is None:
        yield "Nothing can be recommended yet."
        return
    yield f"Recommended: {best.steps}." if best.steps else "Recommended: leave the vectors as they are."
    yield from best.reasons
    yield f"Price: {best.price}"
    if second is not None:
        kind = "Runner-up" if second.keeps else "What comes nearest to a smaller size, short of what must be kept"
        yield f"{kind}: {second.steps}. {second.price}"


def describe_mean_direction(advice: Advice) -> Iterator[str]:
    """Yield sentences on whether the mean direction exceeds chance, and how large it is."""
    norm, floor = advice.diagnosis["mean_norm"], advice.diagnosis["noise_floor"]
    if advice.best is None:
        yield f"‖μ‖ is {norm:.3f}; of so few rows it cannot be told whether that is a direction."
    elif norm <= MIN_MEAN_NORM * floor:
        yield f"No mean direction can be told: ‖μ‖ is {norm:.3f}, and chance alone gives {floor:.3f}."
    else:
        own = norm**2 - floor**2
        size = "large" if norm >= LARGE_MEAN else "small" if norm <= SMALL_MEAN else "moderate"
        agreed = "" if advice.mean_agreement is None else f", cosine {advice.mean_agreement:.3f} to the other rows'"
        yield (
            f"The mean direction of the held-out rows is real, ‖μ‖ = {norm:.3f} against {floor:.3f} by chance{agreed}, "
            f"and {size}: it holds {100 * own:.0f} % of a vector's squared length."
        )
        if advice.debiasing is not None and not advice.debiasing.by_length:
            yield "Its size alone promises no gain."


def describe_first_coordinates(advice: Advice) -> Iterator[str]:
    """Yield a sentence on whether the first coordinates preserve more neighbours than random ones, if measured."""
    if advice.best is not None and advice.matryoshka is None:
        yield f"With {advice.heldout} held-out rows it is not told whether the first coordinates hold more than others."
    if advice.matryoshka is None or len(advice.matryoshka.cuts) < 2:
        return
    cuts = advice.matryoshka.cuts
    failing = find_failing_cuts(cuts)
    cut = min(failing, key=lambda one: one.first - one.random) if failing else cuts[-1]
    found = (
        f"the first {cut.dimensions} find {cut.first:.1f} % of the neighbours, as many others {cut.random:.1f} % on "
        f"average and {cut.best:.1f} % at best"
    )
    if not failing:
        yield f"The first coordinates hold more than others, as after Matryoshka training or a PCA: {found}."
    else:
        least = f"; {MIN_LEAD:g} points above the average are the least" if cut.first > cut.best else ""
        yield f"The first coordinates do not reliably hold more than others: {found}{least}."


def describe_transfer(advice: Advice) -> Iterator[str]:
    """Yield a sentence that compares what the chain preserves on out-of-domain text and held-out rows, or why not.

    By split-half retrieval if both have it, else by neighbours. Nothing is yielded if a share could not be measured.
    """
    if not advice.elsewhere:
        yield "No chain is recommended, so that there is none to try on foreign text."
        return
    if len(advice.elsewhere) == 1:
        if advice.encoder is None:
            yield "Whether the chain serves other text cannot be told: the vectors name no encoder to make any with."
        return
    here, there = advice.elsewhere
    kept, what, why = (here.kept_of_halves, there.kept_of_halves), "what halves of texts find of each other", ""
    if None in kept:
        kept, what = (here.kept_of_neighbours, there.kept_of_neighbours), "the raw neighbours with rescoring"
        if advice.best is not None and advice.best.debiasing != NOTHING:
            why = " Debiasing, which is part of the chain, changes these on purpose."
    if kept[0] is not None and kept[1] is not None:
        yield (
            f"Among as many rows the chain keeps {format_percent(kept[1])} of {what} on foreign text, "
            f"{format_percent(kept[0])} here: {judge_transfer(kept[0], kept[1], advice.keep)}.{why}"
        )


def judge_transfer(here: Interval, there: Interval, keep: float) -> str:
    """Return a clause that judges transfer from the shares preserved on held-out rows and on out-of-domain text.

    Args:
        here: share on held-out rows.
        there: share on out-of-domain text.
        keep: share that must be preserved.
    """
    lowest, highest = zip(here.bounds, there.bounds, strict=True)
    if min(lowest) >= keep:
        return "it serves both"
    if max(highest) < keep:
        return "it loses on both"
    if highest[1] < keep or (here.value - there.value > MIN_TRANSFER_DROP and highest[1] < lowest[0]):
        return "it is made for text like this source"
    return f"it is not sure to keep {100 * keep:g} % on both"


def describe_shortages(advice: Advice) -> Iterator[str]:
    """Yield a sentence for each shortage; without any, that the sample is large enough, if that could be checked."""
    yield from (_format_shortage(one, advice) for one in advice.shortages)
    told = advice.debiasing is not None and advice.debiasing.trial("R2").gain is not None
    if told and not advice.shortages:
        yield f"The sample is large enough: {advice.distinct:,} distinct rows."


def _format_shortage(one: Shortage, advice: Advice) -> str:
    """Return a sentence with what the sample is too small for, and how many more rows would be enough."""
    what = one.what[0].upper() + one.what[1:]
    if one.more is None:
        return f"{what}; {one.instead}."
    if advice.capped:
        return f"{what}; looking at {advice.distinct + one.more:,} rows might tell (--rows)."
    return f"{what}; about {one.more:,} more distinct rows would do."
