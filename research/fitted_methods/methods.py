"""Methods to fit on the corpus of sentences: debiasing methods and reducers. They are never fitted on a task."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from lathe.training.evaluation.methods import EvaluatedMethod, reduced_size
from lathe.training.workspace import digest
from lathe.transforms import Chain, parse_steps
from lathe.transforms.vectors import FloatArray

RANDOM_SEEDS = (42, 2, 3, 4)
"""Seeds of the random directions, as in the mean-bias paper (its Appendix F)."""


MEAN_CENTRING = "mean-centring"
"""Name of the only debiasing method whose outputs are not normalized."""
DEBIASING = {
    "R1": "r1",
    "R2": "r2",
    "ABTT-1": "abtt:1",
    "ABTT-2": "abtt:2",
    "ABTT-3": "abtt:3",
    MEAN_CENTRING: "mc",
    **{f"random, seed {seed}": f"rand:seed={seed}" for seed in RANDOM_SEEDS},
    "whitening": "whitening:epsilon=1e-6,relative=false",
}
"""Steps of the methods in the mean-bias paper except the control (its Table 2); the random direction has several
seeds."""

GEOPRES, UNCENTRED_PCA, TRUNCATION = "geopres:{k}", "pca:{k},center=none", "truncation:{k}"
REDUCERS = (
    "r2,geopres:{k}",
    GEOPRES,
    "pca:{k}",
    UNCENTRED_PCA,
    "autoencoder:{k},steps=200,batch=4096",
    "random_projection:{k}",
    "random_selection:{k}",
    TRUNCATION,
)
"""Steps of the compared reducers: those of the starter chains, GeoPres alone, and the baselines of the GeoPres paper
(Section 4.3)."""


@dataclass(frozen=True)
class FittableMethod(EvaluatedMethod):
    """Method to fit, or a fitted chain whose output may be cut to fewer dimensions.

    Its group is `ladder`, `sweep` or `means` beside those of `EvaluatedMethod`.

    Attributes:
        label: label shared by methods whose scores are averaged, such as several seeds.
        steps: steps as `parse_steps` reads them; empty for raw vectors and for fitted chains.
        normalize: whether outputs are normalized.
        size: output dimensions of a reduction; None for other methods.
    """

    label: str = ""
    steps: str = ""
    normalize: bool = True
    size: int | None = None

    @property
    def sample(self) -> tuple[int | None, int]:
        """Number of sentences to fit on, None for all, and the seed that draws them.

        Both are a part of the key.
        """
        return None, 0

    def cuts_to(self, size: int) -> bool:
        """Return whether the method is a nested chain whose output can be cut to fewer dimensions, `size`."""
        if self.chain is None or self.group != "chain":
            return False
        return self.chain.nested and self.chain.serves(size) and size != self.size

    def cut(self, size: int) -> "FittableMethod":
        """Return a copy of the method that cuts the output of its nested chain to `size` dimensions."""
        return replace(self, name=f"{self.name}, {size}", group="sweep", size=size, key=f"{self.key}-{size}")

    def on(self, output: str, corpus: str) -> "FittableMethod":
        """Return a copy of the method with its key when fitted on this encoder and corpus.

        Args:
            output: hash of the encoder's output.
            corpus: hash of the sentences.
        """
        if not self.steps:
            return self
        return replace(self, key=digest(self.steps, self.normalize, *self.sample, output, corpus)[:32])

    def fit(self, rows: FloatArray) -> Chain:
        """Fit a new chain with the method's steps on the vectors of the corpus `(n, d)`.

        Raises:
            EvaluationError: if there are too few rows.
            TransformError: if the steps cannot be fitted on the vectors.
        """
        return Chain(parse_steps(self.steps), self.normalize).fit(rows)


def label_method(method: EvaluatedMethod) -> FittableMethod:
    """Return the raw vectors, or a chain, with a label and the output dimensions of a reduction."""
    size = None if method.chain is None or method.group == "rescored" else reduced_size(method.chain)
    return FittableMethod(**vars(method), label=method.name, size=size)


def list_debiasing_methods() -> list[FittableMethod]:
    """Return the debiasing methods of the mean-bias paper, as methods to fit, without the raw vectors."""
    return [
        FittableMethod(
            name,
            "ladder",
            label="random direction" if name.startswith("random") else name,
            steps=steps,
            normalize=name != MEAN_CENTRING,
        )
        for name, steps in DEBIASING.items()
    ]


def build_reducer(steps: str, label: str, size: int) -> FittableMethod:
    """Return the reducer with these steps, named by them."""
    return FittableMethod(steps, "sweep", label=label, steps=steps, size=size)


def list_reducer_methods(sizes: Iterable[int]) -> list[FittableMethod]:
    """List every reducer at every number of dimensions, as methods to fit."""
    return [
        build_reducer(reducer.format(k=size), label_reducer(reducer), size) for size in sizes for reducer in REDUCERS
    ]


def label_reducer(reducer: str) -> str:
    """Return the label that the results of a reducer share at all sizes.

    It is the text up to the first colon, with "uncentred" for uncentred PCA.
    """
    kinds, _, options = reducer.partition(":")
    return f"{kinds} uncentred" if "center=none" in options else kinds


def resolve_size(size: Fraction, dimensions: int) -> int | None:
    """Convert a parsed size (a number of dimensions, or a share below 1) to a number of dimensions.

    The result is None unless it is at least 1 and below `dimensions`.
    """
    resolved = int(size * dimensions) if size < 1 else int(size)
    return resolved if 1 <= resolved < dimensions else None
