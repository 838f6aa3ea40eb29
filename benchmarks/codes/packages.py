"""Quantizers of other packages, which are optional: `pip install rabitqlib turbovec turboquant-pro remex`.

Each quantizes all coordinates alike, so a budget decides how many principal axes are left. What does not fit a budget
in all dimensions is prepared by `prepare`; turboquant-pro has its own principal axes.
"""

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.codes.methods import Built, Recipe, Search, Vectors, find_dimensions, prepare

Create = Callable[[Vectors, Vectors, int], Search]
"""Function of the rows to fit on `(n, k)`, those to search `(m, k)`, and bits that returns their search."""


def _build_rabitqlib(train: Vectors, rows: Vectors, bits: int) -> Search:
    from rabitqlib import IvfIndex

    index = IvfIndex(rows.shape[1], len(rows), 1, bits, "ip")
    index.build(rows, train.mean(axis=0, keepdims=True), np.zeros(len(rows), np.uint32))
    return lambda asked, k: index.search(asked, k, 1)[0].astype(np.int64)


def _build_turbovec(train: Vectors, rows: Vectors, bits: int) -> Search:
    from turbovec import TurboQuantIndex

    index = TurboQuantIndex(dim=rows.shape[1], bit_width=bits)
    index.calibrate(train)
    index.add(rows)
    return lambda asked, k: index.search(asked, k)[1]


def _build_remex(train: Vectors, rows: Vectors, bits: int) -> Search:
    from remex import Quantizer

    quantizer = Quantizer(rows.shape[1], bits=bits)
    codes = quantizer.encode(rows)
    return lambda asked, k: quantizer.search_batch(codes, asked, k)[0]


PACKAGES: dict[str, tuple[Create, int, tuple[int, ...], Callable[[int], int]]] = {
    # Bytes of factors: three floats of RaBitQ's first bit and two of its others; a norm.
    "rabitqlib": (_build_rabitqlib, 32, (1, 2, 3, 4), lambda bits: 12 if bits == 1 else 20),
    "turbovec": (_build_turbovec, 8, (2, 4), lambda bits: 4),
    "remex": (_build_remex, 8, (1, 2, 3, 4), lambda bits: 4),
}
"""By package: its index, the multiple of its dimensions, the bits that are tried, and bytes of factors by bits."""


def list_package_recipes(dimensions: int, budget: int) -> Iterator[Recipe]:
    """Yield the methods of the installed packages at a budget of bytes."""
    for name, (create, multiple, choices, factors) in PACKAGES.items():
        for bits in choices if find_spec(name) else ():
            build = partial(_build_prepared, name, create, budget, multiple, bits, factors(bits))
            yield Recipe(f"{name} {bits}", build)
    for bits in (2, 3, 4) if find_spec("turboquant_pro") else ():
        yield Recipe(f"turboquant-pro {bits}", partial(_build_turboquant_pro, budget, bits))


def list_missing() -> list[str]:
    """Return the packages that are not installed, and so left out."""
    return [name for name in (*PACKAGES, "turboquant_pro") if not find_spec(name)]


def _build_prepared(
    name: str, create: Create, budget: int, multiple: int, bits: int, factors: int, train: Vectors, corpus: Vectors
) -> Iterator[Built]:
    """Yield a package's index of prepared vectors, and of the vectors as they are if all dimensions fit the budget."""
    width = train.shape[1]
    k = find_dimensions(width, budget, multiple, lambda k: -(-k * bits // 8) + factors)
    if k < 64 and name == "rabitqlib":
        return  # its rotation needs 64 dimensions
    size = -(-k * bits // 8) + factors
    rows, others, project, _ = prepare(train, corpus, k)
    search = create(rows, others, bits)
    yield Built(name, f"{bits} bits, {k} axes", size, lambda asked, n: search(project(asked), n))
    if k == width:
        yield Built(name, f"{bits} bits, as they are", size, create(train, corpus, bits))


def _build_turboquant_pro(budget: int, bits: int, train: Vectors, corpus: Vectors) -> Iterator[Built]:
    """Yield turboquant-pro's index with as many of its principal axes as the budget allows, and a norm."""
    from turboquant_pro import ADCIndex, PCAMatryoshka

    k = min(train.shape[1], 8 * (budget - 4) // bits)
    axes: Any = PCAMatryoshka(input_dim=train.shape[1], output_dim=k)
    axes.fit(train)
    index = ADCIndex(axes.with_quantizer(bits=bits)).add(corpus)
    yield Built(
        "turboquant-pro", f"{bits} bits, {k} axes", -(-k * bits // 8) + 4, lambda asked, n: index.search(asked, n)[0]
    )
