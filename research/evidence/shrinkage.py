"""Compares REZE's Eq. 6 as it is printed with the signed form, on the pairs of real sources.

Nothing is trained.

    python -m research.evidence.shrinkage --encoders FOLDER --data FOLDER --suite finance --suite code

As printed, a factor divides by |μ|, the length of a source's mean in a direction. An eigenvector may as well point the
other way, which turns the sign of the numerator and not that of the denominator. So the printed factors are also
computed with every direction turned at random, many times.
"""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import markdown_table, parser, write_report
from benchmarks.starters import print_progress
from lathe.training.encoder.encoder import Encoder
from lathe.training.finetuning.job import DataSettings
from lathe.training.finetuning.mixture import Mixture
from lathe.training.finetuning.mixture_builder import read_sources
from lathe.training.finetuning.reference import ReferenceVectors
from lathe.training.finetuning.regularizers.regularizer import RegularizerSettings
from lathe.training.finetuning.regularizers.shrinkage import ROUNDING, Shrinkage, compute_source_moments, fit_shrinkage
from research.evidence.families import FAMILIES, request_model
from research.reze_experiment.geometry import compare_geometry, row_cosines

TURNS = 100
"""Number of times that all directions are turned at random."""


@dataclass(frozen=True)
class Form:
    """What a form of Eq. 6 does to the relations of all sources.

    Attributes:
        factors: number of factors other than 1.
        by_source: number of them by source.
        between: share of the variance between sources that is left.
        cosine: mean cosine of relations and targets.
    """

    factors: int
    by_source: dict[str, int]
    between: float
    cosine: float


@dataclass(frozen=True)
class Comparison:
    """Both forms of Eq. 6 on the same relations.

    Attributes:
        pairs: number of pairs.
        signed: the form that divides by sgn(μ)(|μ| + ε).
        printed: the form that divides by |μ| + ε.
        cosine: mean cosine between the targets of the two.
        turned_factors: number of factors other than 1 of the printed form with directions turned at random.
        turned_cosine: mean cosine between the printed targets with turned directions and without.
    """

    pairs: int
    signed: Form
    printed: Form
    cosine: float
    turned_factors: tuple[int, ...]
    turned_cosine: float


def main() -> None:
    """Compare on each suite with each encoder, print a table, write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--encoders", type=Path, required=True, help="folder of the encoders' folders")
    options.add_argument("--data", type=Path, required=True, help="folder of the suites")
    options.add_argument("--suite", action="append", required=True, help="folder in it whose data sets are sources")
    options.add_argument("--family", action="append", default=[], help="encoders; the default one if none is named")
    options.add_argument("--pairs", type=int, default=160, help="maximum number of pairs of a source")
    arguments = options.parse_args()
    wanted = arguments.family or [FAMILIES[0].name]
    found: dict[str, dict[str, Any]] = {}
    rows = []
    for family in (family for family in FAMILIES if family.name in wanted):
        spec = request_model(family, arguments.encoders, arguments.out / "encoders").spec
        assert spec is not None
        encoder = Encoder(replace(spec, default_prompt_name=None))
        for suite in arguments.suite:
            sources = {"sources": [{"folder": arguments.data / suite}], "cap": arguments.pairs}
            mixture = read_sources(DataSettings.model_validate(sources)).build()
            one = compare_forms(encode_relations(encoder, mixture), mixture)
            found.setdefault(family.name, {})[suite] = asdict(one)
            rows.append([family.name, suite, *describe(one)])
    header = ["encoder", "sources", "pairs", "factors, signed", "printed", "printed, turned", "sources, signed"]
    header += ["printed", "variance left, signed", "printed", "cos(r, r̂), signed", "printed", "turned targets, cos"]
    print(markdown_table(header, rows))
    print("raw figures:", write_report(arguments.out, "evidence-shrinkage", found), file=sys.stderr)


def encode_relations(encoder: Encoder, mixture: Mixture) -> NDArray[np.float32]:
    """Return the relations of all pairs, `(n, 2d)`: the vectors of anchor and positive, concatenated."""
    with tempfile.TemporaryDirectory() as folder:
        reference = ReferenceVectors(encoder, Path(folder))
        reference.encode([*mixture.anchors, *mixture.positives], print_progress)
        return np.array(reference.relations(mixture))


def compare_forms(relations: NDArray[np.float32], mixture: Mixture) -> Comparison:
    """Compare both forms of Eq. 6, and the printed one with turned directions, with the paper's other settings."""
    before = compute_source_moments(relations, mixture.sources, len(mixture.names))
    forms, targets, shrinkages = {}, {}, {}
    for name in ("signed", "literal"):
        shrinkage = fit_shrinkage(before, RegularizerSettings(denominator=name))
        targets[name], shrinkages[name] = shrinkage.apply(relations, mixture.sources), shrinkage
        geometry = compare_geometry(relations, targets[name], before, mixture)
        counts = (shrinkage.shrink != 1).sum(axis=1).tolist()
        by_source = dict(zip(mixture.names, counts, strict=True))
        left = geometry.between[1] / geometry.between[0]
        forms[name] = Form(sum(counts), by_source, left, float(geometry.cosines.mean()))
    random = np.random.default_rng(0)
    turned = [
        turn(shrinkages["literal"], random.choice([-1.0, 1.0], relations.shape[1]), RegularizerSettings())
        for _ in range(TURNS)
    ]
    cosines = [row_cosines(targets["literal"], one.apply(relations, mixture.sources)).mean() for one in turned[:10]]
    return Comparison(
        pairs=len(mixture),
        signed=forms["signed"],
        printed=forms["literal"],
        cosine=float(row_cosines(targets["signed"], targets["literal"]).mean()),
        turned_factors=tuple(int((one.shrink != 1).sum()) for one in turned),
        turned_cosine=float(np.mean(cosines)),
    )


def turn(shrinkage: Shrinkage, signs: NDArray[np.float64], settings: RegularizerSettings) -> Shrinkage:
    """Return the printed form's shrinkage if each direction is multiplied by its sign, −1 or 1, in `signs` `(D,)`.

    The means, their centre and so the numerators of Eq. 6 change their signs with the direction, the denominators do
    not. The directions stay as they are, because a factor scales both of them alike.
    """
    means, deviation = shrinkage.source_means, shrinkage.source_means - shrinkage.center
    chosen = (np.abs(deviation) > shrinkage.band * (1 + ROUNDING)) & shrinkage.variant
    chosen &= np.abs(means) > settings.epsilon_denominator
    pull = settings.strength * (shrinkage.center + np.sign(deviation) * shrinkage.band - means)
    factors = 1 + signs * pull / (np.abs(means) + settings.epsilon_denominator)
    return replace(shrinkage, shrink=np.where(chosen, np.clip(factors, 0, 1), 1.0))


def describe(one: Comparison) -> Sequence[str]:
    """Return the cells of a comparison, without encoder and sources."""
    touched = [sum(count > 0 for count in form.by_source.values()) for form in (one.signed, one.printed)]
    return [
        f"{one.pairs:,}",
        str(one.signed.factors),
        str(one.printed.factors),
        f"{min(one.turned_factors)} to {max(one.turned_factors)}",
        *(f"{count} of {len(one.signed.by_source)}" for count in touched),
        f"{one.signed.between:.0%}",
        f"{one.printed.between:.0%}",
        f"{one.signed.cosine:.3f}",
        f"{one.printed.cosine:.3f}",
        f"{one.turned_cosine:.3f}",
    ]


if __name__ == "__main__":
    main()
