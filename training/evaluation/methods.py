"""What is compared on one encoder: its raw vectors, chains, the ladder of debiasing methods, reducers.

All methods are fitted once on one corpus of sentences without labels, and frozen.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np

from training.errors import EvaluationError
from training.evaluation.worker import FittedMethod
from transforms import Chain, Moments, angular_stress, local_spearman, parse_steps, positional_stress, recall_at_k
from transforms.arrays import FloatArray
from transforms.normalize import unit_rows

CONTROL = "control"
HELDOUT_SHARE = 0.1
HELDOUT_MOST = 2000
"""Sentences kept aside of the corpus, for the intrinsic measures."""

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

Group = Literal["control", "chain", "ladder", "sweep", "means"]


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
    group: Group
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


@dataclass(frozen=True)
class Corpus:
    """The sentences as one encoder's vectors.

    Attributes:
        fit: `(n, d)` to fit on.
        heldout: `(m, d)` kept aside.
        digest: hash of the sentences.
    """

    fit: FloatArray
    heldout: FloatArray
    digest: str

    @property
    def mean_norm(self) -> float:
        """‖μ‖ of the unit vectors to fit on."""
        return Moments.from_vectors(self.fit).mean_norm()


def split_corpus(vectors: FloatArray, digest: str) -> Corpus:
    """Vectors to fit on and vectors kept aside, by a seeded draw."""
    order = np.random.default_rng(0).permutation(len(vectors))
    aside = min(int(len(vectors) * HELDOUT_SHARE), HELDOUT_MOST)
    return Corpus(vectors[np.sort(order[aside:])], vectors[np.sort(order[:aside])], digest)


class MethodShelf:
    """Fitted methods on disk, each fitted once.

    Args:
        folder: one artifact for each method's key, with its intrinsic measures beside it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fitted(
        self, method: Method, fingerprint: str, corpus: Corpus | None, digest: str, on_progress: Callable[[str], None]
    ) -> tuple[FittedMethod, dict[str, float]]:
        """A method fitted, with what it does to the geometry of the sentences kept aside.

        Raises:
            EvaluationError: if it needs a corpus and there is none.
            TransformError: if it cannot be fitted on these vectors.
        """
        key = method.key_on(fingerprint, digest)
        if method.group == CONTROL:
            return FittedMethod(method.name, key), {}
        folder, measured = self.folder / key, self.folder / f"{key}.json"
        if not folder.exists():
            on_progress(f"fitting {method.name}")
            (method.chain or fit(method, corpus)).save(folder)
        if not measured.exists() and method.size is not None and corpus is not None:
            measures = intrinsic(Chain.load(folder), method.size, corpus.heldout)
            staging = measured.with_suffix(".staging")
            staging.write_text(json.dumps(measures))
            staging.replace(measured)
        found: dict[str, float] = json.loads(measured.read_text()) if measured.exists() else {}
        cut = method.size if method.chain is not None else None
        return FittedMethod(method.name, key, folder, cut), found


def fit(method: Method, corpus: Corpus | None) -> Chain:
    """A method's map, from the corpus.

    Raises:
        EvaluationError: if there is no corpus.
        TransformError: if the steps do not fit it.
    """
    if corpus is None:
        raise EvaluationError(f"{method.name} is fitted on sentences: name some with --corpus")
    rows: Any = corpus.fit
    if method.sentences is not None:
        if method.sentences > len(rows):
            raise EvaluationError(f"{method.name}: the corpus has {len(rows):,} sentences to fit on")
        rows = rows[np.random.default_rng(method.draw).permutation(len(rows))[: method.sentences]]
    return Chain(parse_steps(method.steps), method.normalize).fit(rows)


def intrinsic(chain: Chain, size: int, heldout: FloatArray) -> dict[str, float]:
    """What a reduction keeps of the geometry: the measures of the GeoPres paper (its Table 1), and recall@10."""
    before = unit(heldout)
    after = np.asarray(chain.dequantize(chain.transform(heldout, size if chain.nested else None)), np.float32)
    return {
        "local_spearman": local_spearman(before, after),
        "positional": positional_stress(before, after),
        "angular": angular_stress(before, after),
        "recall_at_10": recall_at_k(before, after),
    }


def unit(vectors: FloatArray) -> FloatArray:
    """Rows at unit length."""
    import torch

    return unit_rows(torch.from_numpy(np.ascontiguousarray(vectors))).numpy()
