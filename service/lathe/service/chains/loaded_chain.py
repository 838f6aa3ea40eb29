"""A version of a chain in memory, and loading it from its artifact folder."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from lathe.service.chains.chain_ref import ChainRef
from lathe.service.chains.file_stamp import get_file_stamp
from lathe.service.chains.fit_fields import require_fit_fields
from lathe.service.chains.folded_forms import FoldedForms
from lathe.transforms.errors import ArtifactError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lathe.transforms.artifact import FitDistribution
    from lathe.transforms.base import Side
    from lathe.transforms.chain import Chain


class LoadedChain:
    """A version of a chain in memory, with its folded forms.

    Each request needs the chain's dimensions, which take a hundred calls to the steps, so they are stored too.

    Args:
        folder: artifact folder of the version; its stamp is stored, to notice later that it was replaced.
    """

    def __init__(self, name: str, version: int, chain: "Chain", folder: Path) -> None:
        self.folder = folder
        self.file_stamp = get_file_stamp(folder)
        self.name = name
        self.version = version
        self.chain = chain
        self.digest: str = chain.metadata["tensors_sha256"]
        self.forms = FoldedForms(chain)

    @property
    def ref(self) -> str:
        """Reference `name@version`."""
        return f"{self.name}@{self.version}"

    @property
    def encoder_fingerprint(self) -> str | None:
        """Fingerprint of the encoder whose vectors the chain takes, or None if it was fitted without one."""
        encoder = self.chain.metadata.get("encoder")
        return encoder["fingerprint"] if encoder else None

    @cached_property
    def input_dimensions(self) -> int | None:
        """Number of input dimensions, as in `Chain`, or None for any."""
        return self.chain.input_dimensions

    @cached_property
    def output_dimensions(self) -> int | None:
        """Number of output dimensions, as in `Chain`, or None if unknown."""
        return self.chain.output_dimensions

    @cached_property
    def nested(self) -> bool:
        """Whether any prefix of an output is usable by itself, as in `Chain`."""
        return self.chain.nested

    def serves(self, dimensions: int) -> bool:
        """Return whether the chain's outputs can have this number of dimensions.

        The answer is that of `Chain.serves`, from the stored dimensions instead of the steps.
        """
        from lathe.transforms.chain import serves_dimensions

        return serves_dimensions(self.output_dimensions, self.nested, dimensions)

    @cached_property
    def fit_distribution(self) -> "FitDistribution | ArtifactError":
        """Distribution of the rows the chain was fitted on, or the `ArtifactError` met in reading it.

        It is read on first access.
        """
        from lathe.transforms.artifact import FitDistribution

        try:
            return FitDistribution.load(self.folder)
        except ArtifactError as error:
            return error

    def fold(self, dimensions: int | None, normalize: bool, side: "Side" = "document") -> "Chain":
        """Return the chain with its affine steps multiplied into one, cut to a size.

        The result is kept, see `FoldedForms`.

        Args:
            dimensions: output dimensions; None for all.
            normalize: whether unit vectors are wanted; ignored where the chain does not normalize, or quantizes.
            side: side of a search that is transformed; queries are not quantized.
        """
        return self.forms.get(dimensions, self.is_normalized(normalize), side)

    def is_folded(self, dimensions: int | None, normalize: bool, side: "Side" = "document") -> bool:
        """Return whether `fold` with the same arguments returns at once, since its result is kept."""
        return self.forms.find(dimensions, self.is_normalized(normalize), side) is not None

    def build_ref(self, dimensions: int | None, normalize: bool, side: "Side" = "document") -> ChainRef:
        """Return the reference from which a worker process loads and folds the same chain.

        The arguments are those of `fold`.
        """
        return ChainRef(self.folder, self.digest, dimensions, self.is_normalized(normalize), side)

    def is_normalized(self, wanted: bool) -> bool:
        """Return whether outputs are unit vectors, for a request that wants them (`wanted`) or not.

        They are if the chain normalizes, and that is wanted or the chain has a quantizer.
        """
        as_fitted = self.chain.quantizer is not None  # the ranges of codes are those of what was fitted
        return self.chain.normalize and (wanted or as_fitted)

    def clipped_share(self, rows: "NDArray[np.float32]") -> float | None:
        """Return the share of values in rows `(n, d)` beyond the codes' fitted range, or None without a range."""
        quantizer = self.chain.quantizer
        return None if quantizer is None else quantizer.clipped_share(self._unquantized.transform(rows))

    @cached_property
    def _unquantized(self) -> "Chain":
        return self.chain.without_quantizer().fold()


def load_chain(folder: Path, root: Path | None) -> "Chain":
    """Load a chain from its artifact folder, and check the types of the fields that a fit adds to its manifest.

    Args:
        folder: the artifact folder.
        root: folder that no link may lead out of; None follows links anywhere.

    Raises:
        ArtifactError: if the files are damaged, or a field has a wrong type.
    """
    from lathe.transforms.chain import Chain  # imports torch, which listing chains does not need

    chain = Chain.load(folder, root)
    require_fit_fields(folder, chain.metadata)
    return chain
