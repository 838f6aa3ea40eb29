"""An advice in plain sentences."""

from collections.abc import Iterator

from training.advice.advise import Advice
from training.advice.enough import Shortage

LARGE, SMALL = 0.5, 0.2
"""‖μ‖ from which on, and up to which, it is called so: a norm of .5 is a quarter of every vector's length squared."""
LOSES_ELSEWHERE = 0.05
"""Of recall@10, from held-out to foreign text, that is worth a word."""


def sentences(advice: Advice) -> list[str]:
    """Everything there is to say, the recommendation first."""
    return [
        *verdict(advice),
        *direction(advice),
        *of_matryoshka(advice),
        *foreign(advice),
        *lacks(advice),
        *advice.notes,
    ]


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
        yield f"Runner-up: {second.steps}. {second.price}"


def direction(advice: Advice) -> Iterator[str]:
    """Whether there is a mean direction worth the name."""
    norm, floor = advice.diagnosis["mean_norm"], advice.diagnosis["noise_floor"]
    if not advice.direction_is_real:
        yield f"There is no mean direction: ‖μ‖ is {norm:.3f}, and chance alone gives {floor:.3f}."
        return
    size = "large" if norm >= LARGE else "small" if norm <= SMALL else "moderate"
    yield (
        f"The mean direction is real, ‖μ‖ = {norm:.3f} against {floor:.3f} by chance, and {size}: it holds "
        f"{100 * norm**2:.0f} % of a vector's squared length. Its size alone promises no gain."
    )


def of_matryoshka(advice: Advice) -> Iterator[str]:
    """Whether the encoder was trained to be cut."""
    if advice.matryoshka is None:
        return
    cut = min(advice.matryoshka.cuts, key=lambda one: one.dimensions, default=None)
    if cut is None:
        return
    told = "was trained to be cut (Matryoshka)" if advice.matryoshka.trained else "was not trained to be cut"
    yield (
        f"The encoder {told}: its first {cut.dimensions} numbers find {cut.first:.1f} % of the neighbours, "
        f"{cut.dimensions} others {cut.random:.1f} %."
    )


def foreign(advice: Advice) -> Iterator[str]:
    """How the chain does on text it was not fitted for."""
    places = {one.text: one for one in advice.elsewhere}
    here, there = (places.get(name) for name in ("held out", "foreign"))
    if here is None or there is None:
        return
    recalls = here.measures["recall_at_10"], there.measures["recall_at_10"]
    if recalls[0] is None or recalls[1] is None:
        return
    lost = recalls[0] - recalls[1]
    told = "it is made for text like this source" if lost > LOSES_ELSEWHERE else "it serves both"
    yield f"On foreign text the chain keeps recall@10 {recalls[1]:.3f}, here {recalls[0]:.3f}: {told}."


def lacks(advice: Advice) -> Iterator[str]:
    """What the sample is too small for."""
    yield from (shortage_in_words(one) for one in advice.shortages)
    if advice.best is not None and not advice.shortages:
        yield f"The sample is large enough: {advice.distinct:,} distinct rows."


def shortage_in_words(one: Shortage) -> str:
    """What is lacking, and what would do."""
    what = one.what[0].upper() + one.what[1:]
    if one.more is None:
        return f"{what}; more texts than are looked at would be needed."
    return f"{what}; about {one.more:,} more distinct texts would do."
