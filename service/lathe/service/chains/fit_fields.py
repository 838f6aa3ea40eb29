"""Checks of the fields that a fit adds to a chain's manifest.

They are checked when a manifest is read, because it may come from somebody else.
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from lathe.transforms.artifact import Manifest, display_name, require_field_types
from lathe.transforms.errors import ArtifactError

OBJECTS = {"encoder": dict, "target_encoder": dict, "provenance": dict, "certificate": dict}
"""Fields that are JSON objects."""

Figure = float | None
"""A measure. It is None if there were too few rows for it."""

Dimensions = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,4}$")]
"""A number of dimensions as a key of JSON."""


class _Fields(BaseModel):
    """Fields of a JSON object.

    Those that are not declared may be anything.
    """

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
