"""An advice in plain sentences."""

from collections.abc import Iterator

from training.advice.advise import Advice, Elsewhere
from training.advice.enough import Shortage
from transforms.diagnostics import DIRECTION_MARGIN

LARGE, SMALL = 0.5, 0.2
"""‖μ‖ from which on, and up to which, it is called so: a norm of .5 is a quarter of every vector's length squared."""
LOSES_ELSEWHERE = 0.05
"""Of what halves of texts find, or of recall@10, from held-out to foreign text: worth a word."""


def sentences(advice: Advice) -> list[str]:
    """Everything there is to say, the recommendation first."""
    parts = (verdict, direction, of_matryoshka, foreign, lacks)
    return [*(sentence for part in parts for sentence in part(advice)), *advice.notes]


def verdict(advice: Advice) -> Iterator[str]:
    """What to do, why, at what price, and what comes second."""
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


def direction(advice: Advice) -> Iterator[str]:
    """Whether there is a mean direction worth the name."""
    norm, floor = advice.diagnosis["mean_norm"], advice.diagnosis["noise_floor"]
    if advice.best is None:
        yield f"‖μ‖ is {norm:.3f}; of so few rows it cannot be told whether that is a direction."
    elif norm <= DIRECTION_MARGIN * floor:
        yield f"No mean direction can be told: ‖μ‖ is {norm:.3f}, and chance alone gives {floor:.3f}."
    else:
        own = norm**2 - floor**2
        size = "large" if norm >= LARGE else "small" if norm <= SMALL else "moderate"
        agreed = "" if advice.mean_agreement is None else f", cosine {advice.mean_agreement:.3f} to the other rows'"
        yield (
            f"The mean direction of the held-out rows is real, ‖μ‖ = {norm:.3f} against {floor:.3f} by chance{agreed}, "
            f"and {size}: it holds {100 * own:.0f} % of a vector's squared length. Its size alone promises no gain."
        )


def of_matryoshka(advice: Advice) -> Iterator[str]:
    """Whether the encoder was trained to be cut."""
    if advice.matryoshka is None or not advice.matryoshka.cuts:
        return
    cut = min(advice.matryoshka.cuts, key=lambda one: one.dimensions)
    found = f"the first {cut.dimensions} find {cut.first:.1f} % of the neighbours, as many others {cut.random:.1f} %"
    if advice.matryoshka.first_hold_more:
        yield f"The first coordinates hold more than others, as after Matryoshka training or a PCA: {found}."
    else:
        yield f"The first coordinates hold no more than others, so this encoder is no Matryoshka: {found}."


def foreign(advice: Advice) -> Iterator[str]:
    """How the chain does on text it was not fitted for."""
    places = {one.text: one for one in advice.elsewhere}
    here, there = (places.get(name) for name in ("held out", "foreign"))
    if here is None or there is None:
        return
    changes = [relative(one) for one in (here, there)]
    if None not in changes:
        what = "what halves of texts find of each other"
    else:
        changes = [one.measures["recall_at_10"] for one in (here, there)]
        what = "recall@10 of the raw neighbours"
    if changes[0] is None or changes[1] is None:
        return
    lost = changes[0] - changes[1] > LOSES_ELSEWHERE
    told = "it is made for text like this source" if lost else "it serves both"
    yield (
        f"Among as many rows the chain keeps {100 * changes[1]:.1f} % of {what} on foreign text, "
        f"{100 * changes[0]:.1f} % here: {told}."
    )


def relative(one: Elsewhere) -> float | None:
    """The share of what halves of texts found in the raw vectors that they find behind the chain."""
    if one.gain is None or not one.retrieval:
        return None
    return (100 * one.retrieval + one.gain.value) / (100 * one.retrieval)


def lacks(advice: Advice) -> Iterator[str]:
    """What the sample is too small for."""
    yield from (shortage_in_words(one, advice) for one in advice.shortages)
    told = advice.debiasing is not None and advice.debiasing.trial("R2").gain is not None
    if told and not advice.shortages:
        yield f"The sample is large enough: {advice.distinct:,} distinct rows."


def shortage_in_words(one: Shortage, advice: Advice) -> str:
    """What is lacking, and what would do."""
    what = one.what[0].upper() + one.what[1:]
    if one.more is None:
        return f"{what}; not even the most rows that are held out would tell."
    if advice.capped:
        return f"{what}; looking at {advice.distinct + one.more:,} rows might tell (--rows)."
    return f"{what}; about {one.more:,} more distinct rows would do."
