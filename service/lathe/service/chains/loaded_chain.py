"""A version of a chain in memory, and loading it from its artifact folder.

The fields that a fit adds to a chain's manifest are checked when it is read, because it may come from somebody else.
Files that were replaced since they were read are recognized, so that memory need not be trusted.
"""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from lathe.service.chains.folded_forms import FoldedForms
from lathe.transforms.artifact import Manifest, display_name, require_field_types
from lathe.transforms.errors import ArtifactError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lathe.transforms.artifact import FitDistribution
    from lathe.transforms.chain import Chain
    from lathe.transforms.codes import Quantizer


class LoadedChain:
    """A version of a chain of transforms in memory, with its folded forms.

    Each request needs the chain's dimensions, which take a hundred calls to the steps, so they are stored too.

    Args:
        folder: artifact folder of the version; its stamp is stored, to notice later that it was replaced.

    Attributes:
        ref: reference `name@version`.
        quantizer: last step if it is a quantizer, as in `Chain`, else None.
        input_dimensions: number of input dimensions, as in `Chain`, or None for any.
        output_dimensions: number of output dimensions, as in `Chain`, or None if unknown.
        nested: whether the first dimensions of an output, however many, are usable by themselves, as in `Chain`.
    """

    def __init__(self, name: str, version: int, chain: "Chain", folder: Path) -> None:
        self.folder = folder
        self.file_stamp = get_file_stamp(folder)
        self.name = name
        self.version = version
        self.ref = f"{name}@{version}"
        self.chain = chain
        self.quantizer: Quantizer | None = chain.quantizer
        self.input_dimensions, self.output_dimensions = chain.input_dimensions, chain.output_dimensions
        self.nested = chain.nested
        self.digest: str = chain.metadata["tensors_sha256"]
        self.forms = FoldedForms(chain)

    @property
    def encoder_fingerprint(self) -> str | None:
        """Fingerprint of the encoder whose vectors the chain takes, or None if it was fitted without one."""
        encoder = self.chain.metadata.get("encoder")
        return encoder["fingerprint"] if encoder else None

    def serves(self, dimensions: int) -> bool:
        """Return whether the chain's outputs can have this number of dimensions.

        The answer is the same as from `Chain.serves`, but comes from the stored dimensions.
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

    def is_normalized(self, wanted: bool) -> bool:
        """Return whether outputs are unit vectors.

        They are if the chain normalizes, and either `wanted` is true or the chain has a quantizer.
        """
        as_fitted = self.quantizer is not None  # the ranges of codes are those of what was fitted
        return self.chain.normalize and (wanted or as_fitted)

    def clipped_share(self, rows: "NDArray[np.float32]") -> float | None:
        """Return the share of values in rows `(n, d)` that lie beyond the fitted range of the quantizer.

        Returns None without a quantizer or a range.
        """
        return None if self.quantizer is None else self.quantizer.clipped_share(self._unquantized.transform(rows))

    @cached_property
    def _unquantized(self) -> "Chain":
        return self.chain.without_quantizer().fold()


def load_chain(folder: Path, root: Path | None) -> "Chain":
    """Load a chain of transforms from its artifact folder, check the fields that its fit added, and return it.

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


OBJECTS = {"encoder": dict, "target_encoder": dict, "provenance": dict, "certificate": dict}
"""Fields that are JSON objects."""

Figure = float | None
"""A measure. It is None if there were too few rows for it."""

Dimensions = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,4}$")]
"""A number of dimensions as a key of JSON."""


class _Fields(BaseModel):
    """Fields of a JSON object, in which undeclared fields may be anything."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow", allow_inf_nan=True)


class _Encoder(_Fields):
    fingerprint: str
    name: str | None = None
    model: str | None = None


class _Measures(_Fields):
    n: int | None = None
    local_spearman: Figure = None
    recall_at_10: Figure = None
    recall_at_10_rescored_4x: Figure = None
    positional_stress: Figure = None


class _Change(_Fields):
    before: Figure
    after: Figure


class _Certificate(_Measures):
    n_fit: int | None = None
    n_heldout: int | None = None
    mean_norm: _Change | None = None
    isoscore: _Change | None = None
    bytes_per_vector: _Change | None = None
    diagnostics: dict[str, dict[str, Any]] | None = None
    sizes: dict[Dimensions, _Measures] = Field(default_factory=dict)
    codes: dict[str, Any] | None = None
    chosen: list[dict[str, Any]] = Field(default_factory=list)
    alignment: dict[str, Figure] | None = None
    relevance: dict[str, Any] | None = None
    out_of_domain: dict[str, _Measures] = Field(default_factory=dict)
    warnings: list[str] = Field(default_factory=list)


class _Provenance(_Fields):
    gates: dict[str, float] | None = None
    source: str | None = None
    rows: int | None = None
    rows_digest: str | None = None
    training: list[dict[str, Any]] = Field(default_factory=list)


class _FitFields(_Fields):
    name: str | None = None
    version: int | None = None
    encoder: _Encoder | None = None
    target_encoder: _Encoder | None = None
    provenance: _Provenance | None = None
    certificate: _Certificate | None = None


def require_fit_fields(folder: Path, manifest: Manifest) -> None:
    """Raise `ArtifactError` if a field that a fit adds to the manifest, such as the certificate, has a wrong type.

    Each of these fields may be missing.

    Args:
        folder: folder of the artifact, for the message.
        manifest: the manifest.
    """
    require_field_types(folder, manifest, OBJECTS)  # its message is for people, pydantic's is for programmers
    fields = {name: value for name, value in manifest.items() if name in _FitFields.model_fields}
    try:
        _FitFields.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(map(str, first["loc"]))
        raise ArtifactError(
            f"the manifest of {display_name(folder)} cannot be read: {location}: {first['msg']}"
        ) from error


FileStamp = tuple[int, int]
"""Inode and modification time of a path in nanoseconds."""

NO_FILE: FileStamp = (0, 0)
"""Stamp of a path that does not exist."""


def get_file_stamp(path: Path) -> FileStamp:
    """Return `(inode, modification time)` of a path, by which a replaced file is noticed, or `NO_FILE`."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return NO_FILE
    return (status.st_ino, status.st_mtime_ns)
