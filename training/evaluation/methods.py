"""What is compared on one encoder: its raw vectors, chains, the ladder of debiasing methods, reducers.

All methods are fitted once on one corpus of sentences without labels, and frozen.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from training.errors import EvaluationError
from transforms import Chain

CONTROL = "control"
RANDOM_SEEDS = (42, 2, 3, 4)
"""Of the random directions: the mean-bias paper's (its Appendix F)."""

LADDER = (
    ("R1", "r1", True),
    ("R2", "r2", True),
    ("ABTT-1", "abtt:1", True),
    ("ABTT-2", "abtt:2", True),
    ("ABTT-3", "abtt:3", True),
    ("mean-centring", "mc", False),
    *((f"random, seed {seed}", f"rand:seed={seed}", True) for seed in RANDOM_SEEDS),
    ("whitening", "whitening:epsilon=1e-6,relative=false", True),
)
"""The nine methods of the mean-bias paper with the control (its Table 2); the random one with several seeds."""

REDUCERS = (
    "r2,geopres:{k}",
    "geopres:{k}",
    "pca:{k}",
    "pca:{k},center=none",
    "autoencoder:{k},steps=200,batch=4096",
    "random_projection:{k}",
    "random_selection:{k}",
    "truncation:{k}",
)
"""What the starter chains do, GeoPres alone, and the baselines of its paper (Section 4.3)."""

MEAN_DRAWS = 3
"""Draws of each number of sentences that a mean is estimated from."""

Purpose = Literal["control", "chain", "ladder", "sweep", "means"]


@dataclass(frozen=True)
class Method:
    """A map to be fitted, or one that is already.

    Attributes:
        name: in results.
        group: what it is compared within.
        label: methods of one label are averaged: seeds and draws of one thing.
        steps: as `parse_steps` reads them; empty for raw vectors and for fitted chains.
        normalize: whether outputs are normalised.
        sentences: to fit on; None for all.
        draw: which ones, where not all.
        size: of the output, where it is a reduction.
        chain: a fitted one.
        key: hash of that.
        only: the fingerprint of the encoder whose vectors it takes; None for any.
    """

    name: str
    group: Purpose
    label: str
    steps: str = ""
    normalize: bool = True
    sentences: int | None = None
    draw: int = 0
    size: int | None = None
    chain: Chain | None = None
    key: str = ""
    only: str | None = None

    def unsuited(self, fingerprint: str, dimensions: int) -> str | None:
        """Why it cannot take an encoder's vectors; None where it can."""
        if self.only not in (None, fingerprint):
            return "it was fitted on another encoder's vectors"
        width = self.chain.input_dimensions if self.chain else None
        return f"it takes vectors {width} wide, these are {dimensions}" if width not in (None, dimensions) else None

    def cuts_to(self, size: int) -> bool:
        """Whether it is a nested chain with that smaller size among its own."""
        return self.chain is not None and self.chain.nested and self.chain.serves(size) and size != self.size

    def cut(self, size: int) -> "Method":
        """The chain at a smaller size."""
        return replace(self, name=f"{self.name}, {size}", group="sweep", size=size, key=f"{self.key}-{size}")

    def key_on(self, fingerprint: str, corpus: str) -> str:
        """Hash of the map it becomes when fitted: same key, same map."""
        if not self.steps:
            return self.key or CONTROL
        what = [self.steps, self.normalize, self.sentences, self.draw, fingerprint, corpus]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]


def control() -> Method:
    """Raw vectors, which all others are compared with."""
    return Method(CONTROL, "control", CONTROL)


def ladder() -> list[Method]:
    """The nine methods but the control."""
    return [
        Method(name, "ladder", "random direction" if name.startswith("random") else name, steps, normalize)
        for name, steps, normalize in LADDER
    ]


def sweep(sizes: Iterable[int]) -> list[Method]:
    """Every reducer at every size."""
    return [
        Method(reducer.format(k=size), "sweep", reducer_label(reducer), reducer.format(k=size), size=size)
        for size in sizes
        for reducer in REDUCERS
    ]


def reducer_label(reducer: str) -> str:
    """What a reducer is called at every size."""
    kinds, _, rest = reducer.partition(":")
    return f"{kinds} uncentred" if "center=none" in rest else kinds


def parse_size(written: str) -> Fraction:
    """A size a user wrote: a number such as 96, or a share such as 1/4.

    Raises:
        EvaluationError: for anything else.
    """
    try:
        size = Fraction(written)
    except (ValueError, ZeroDivisionError):
        size = Fraction(0)
    if size <= 0 or (size >= 1 and size.denominator > 1):
        raise EvaluationError(f"sizes are numbers such as 96 or shares such as 1/4, not {written!r}")
    return size


def size_of(size: Fraction, dimensions: int) -> int | None:
    """A size in dimensions of an encoder; None where it is not below its width."""
    found = int(size * dimensions) if size < 1 else int(size)
    return found if 1 <= found < dimensions else None


def chain_key(chain: Chain) -> str:
    """Hash of a fitted chain read from disk: its tensors alone do not say whether it normalises."""
    what = [chain.metadata["tensors_sha256"], chain.normalize, chain.specs()]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]


def means(counts: Iterable[int]) -> list[Method]:
    """R1 and R2 with means of so many sentences, several draws each: the paper's claim is about their error."""
    return [
        Method(f"{name} of {count}, draw {draw}", "means", f"{name} of {count}", steps, sentences=count, draw=draw)
        for count in counts
        for name, steps in (("R1", "r1"), ("R2", "r2"))
        for draw in range(MEAN_DRAWS)
    ]
