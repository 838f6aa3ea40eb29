"""Methods that are compared on one encoder: raw vectors, chains, debiasing methods, reducers.

All methods are fitted once, on one corpus of sentences without labels, and never on a task.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from lathe.training.digests import digest
from lathe.training.errors import EvaluationError
from lathe.transforms import Chain, parse_steps
from lathe.transforms.vectors import FloatArray

SEARCH = "Retrieval"
"""Type of mteb's tasks that search a corpus."""
CONTROL = "control"
"""Name of the method that leaves vectors unchanged."""
RANDOM_SEEDS = (42, 2, 3, 4)
"""Seeds of the random directions, as in the mean-bias paper (its Appendix F)."""

RESCORED_CANDIDATES = 40
"""Number of candidates of a query that are ranked again by the raw vectors: `"rescore": 4` for ten results."""

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
class Method:
    """Method to fit, or an already fitted chain.

    Attributes:
        name: unique name in results.
        group: `control`, `chain`, `rescored`, `ladder` or `sweep`, which decides in which tables the method is
            compared. A `rescored` method is a chain whose candidates are ranked again by the raw vectors; it is scored
            on searches only.
        label: name shared by methods whose scores are averaged, such as several seeds.
        steps: steps as `parse_steps` reads them; empty for raw vectors and for fitted chains.
        normalize: whether outputs are normalized.
        size: output dimensions of a reduction; None for other methods.
        chain: fitted chain; None if the method is to be fitted.
        key: hash of the fitted chain.
        only: fingerprint of the only encoder whose vectors the chain takes; None for any.
    """

    name: str
    group: str
    label: str
    steps: str = ""
    normalize: bool = True
    size: int | None = None
    chain: Chain | None = None
    key: str = ""
    only: str | None = None

    @property
    def sample(self) -> tuple[int | None, int]:
        """Number of sentences to fit on, None for all, and the seed that draws them.

        Both are a part of the key.
        """
        return None, 0

    def unsuited_reason(self, fingerprint: str, dimensions: int) -> str | None:
        """Return the reason why the method cannot take an encoder's vectors, or None if it can."""
        if self.only not in (None, fingerprint):
            return "it was fitted on another encoder's vectors"
        width = self.chain.input_dimensions if self.chain else None
        return f"it takes vectors {width} wide, these are {dimensions}" if width not in (None, dimensions) else None

    def cuts_to(self, size: int) -> bool:
        """Return whether the method is a nested chain whose output can be cut to `size` dimensions.
        The result is False for the dimensions that it has already.
        """
        return self.chain is not None and self.chain.nested and self.chain.serves(size) and size != self.size

    def cut(self, size: int) -> "Method":
        """Return a copy of the method that cuts the output of its nested chain to `size` dimensions."""
        return replace(self, name=f"{self.name}, {size}", group="sweep", size=size, key=f"{self.key}-{size}")

    @property
    def compresses(self) -> bool:
        """Whether the method is a fitted chain whose outputs are smaller than its inputs.

        Searches then rescore.
        """
        return self.chain is not None and (self.size is not None or self.chain.quantizer is not None)

    def rescored(self) -> "Method":
        """Return a copy of the method that ranks the candidates of its search again by the raw vectors."""
        name = f"{self.name} rescored"
        return replace(self, name=name, label=name, group="rescored", size=None, key=f"{self.key}-rescored")

    def suits_task(self, task_type: str) -> bool:
        """Return whether the method can be scored on tasks of this mteb type.
        Rescoring methods suit searches only, all others suit every type.
        """
        return self.group != "rescored" or task_type == SEARCH

    def key_on(self, fingerprint: str, corpus: str) -> str:
        """Return the cache key of the method when fitted on this encoder and corpus.
        For a chain that is fitted already, it is the chain's own key.

        Equal keys mean equal maps.

        Args:
            fingerprint: hash of the encoder's output.
            corpus: hash of the sentences.
        """
        if not self.steps:
            return self.key or CONTROL
        return digest(self.steps, self.normalize, *self.sample, fingerprint, corpus)[:32]

    def fit(self, rows: FloatArray) -> Chain:
        """Fit a new chain with the method's steps on the vectors of the corpus `(n, d)`.

        Raises:
            EvaluationError: if there are too few rows.
            TransformError: if the steps cannot be fitted on the vectors.
        """
        return Chain(parse_steps(self.steps), self.normalize).fit(rows)


def build_control_method() -> Method:
    """Return the method that leaves vectors unchanged, with which all others are compared."""
    return Method(CONTROL, "control", CONTROL)


def list_debiasing_methods() -> list[Method]:
    """Return the debiasing methods of the mean-bias paper, as methods to fit, without the raw vectors."""
    return [
        Method(name, "ladder", "random direction" if name.startswith("random") else name, steps, name != MEAN_CENTRING)
        for name, steps in DEBIASING.items()
    ]


def list_reducer_methods(sizes: Iterable[int]) -> list[Method]:
    """List every reducer at every number of dimensions, as methods to fit."""
    return [
        Method(reducer.format(k=size), "sweep", label_reducer(reducer), reducer.format(k=size), size=size)
        for size in sizes
        for reducer in REDUCERS
    ]


def label_reducer(reducer: str) -> str:
    """Return the label that the results of a reducer share at all sizes.
    It is the text up to the first colon, with "uncentred" for uncentred PCA.
    """
    kinds, _, options = reducer.partition(":")
    return f"{kinds} uncentred" if "center=none" in options else kinds


def parse_size(written: str) -> Fraction:
    """Parse a size to reduce to, given as a number of dimensions such as 96 or as a share of them such as 1/4.
    Return it as a fraction, where values below 1 are shares.

    Raises:
        EvaluationError: if the text is anything else.
    """
    try:
        size = Fraction(written)
    except (ValueError, ZeroDivisionError):
        size = Fraction(0)
    if size <= 0 or (size >= 1 and size.denominator > 1):
        raise EvaluationError(f"sizes are numbers such as 96 or shares such as 1/4, not {written!r}")
    return size


def resolve_size(size: Fraction, dimensions: int) -> int | None:
    """Convert a parsed size, a number of dimensions or a share below 1, to a number of dimensions.
    Return None unless it is at least 1 and below `dimensions`.
    """
    resolved = int(size * dimensions) if size < 1 else int(size)
    return resolved if 1 <= resolved < dimensions else None


def hash_chain(chain: Chain) -> str:
    """Return a hash of a fitted chain's tensors, steps and normalization.
    The chain must be loaded from disk, because the hash of its tensors is read from the metadata.
    """
    return digest(chain.metadata["tensors_sha256"], chain.normalize, chain.specs())[:32]


def build_chain_method(name: str, chain: Chain, key: str, only: str | None = None) -> Method:
    """Build the evaluation method of a chain that is fitted already.
    It counts as a reduction if the chain's outputs have fewer dimensions than its inputs.

    Args:
        name: name in the results.
        chain: the fitted chain.
        key: hash of the chain.
        only: fingerprint of the only encoder whose vectors it takes; None for any.
    """
    before, after = chain.input_dimensions, chain.output_dimensions
    size = after if before and after and after < before else None
    return Method(name, "chain", name, size=size, chain=chain, key=key, only=only)
