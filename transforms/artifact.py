"""A saved chain: a folder that can be trusted or is refused.

name/
├── manifest.json       schema, steps, sizes, SHA-256 of the tensors and of the manifest itself,
│                       encoder, provenance, certificate
├── chain.safetensors   the fitted tensors, named <step>.<buffer>; perhaps moments, see transforms.kept
└── reference.safetensors   where the fit left one: what its rows look like, see transforms.reference

The folder is written under a temporary name beside its place, fsynced, and renamed: it is there
whole or not at all. Nothing in it is ever executed.
"""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transforms.errors import ArtifactError

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
TENSORS = "chain.safetensors"
REFERENCE = "reference.safetensors"

Manifest = dict[str, Any]

MAX_DEPTH = 64
"""Lists and objects inside one another in a manifest; those that a fit writes have 6."""

FIELD_TYPES: Mapping[str, type] = {
    "steps": list,
    "normalize": bool,
    "input_dimensions": int,
    "output_dimensions": int,
    "nested": bool,
    "moments": dict,
    "reference": dict,
}
"""What the fields hold that a chain writes, if they are there and not null; the others are the caller's."""


def write_artifact(
    path: Path, manifest: Manifest, tensors: "Mapping[str, Tensor]", reference: bytes | None = None
) -> Manifest:
    """Write a new artifact folder, whole or not at all; return the manifest as written.

    Args:
        path: of the folder.
        manifest: what it is to say.
        tensors: what was fitted.
        reference: a file beside them; the manifest says its digest.

    Raises:
        ArtifactError: if something is there already.
        OSError: if it cannot be written; nothing is left behind.
    """
    from safetensors.torch import save  # brings torch, which manifests and files do without

    payload = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    manifest = manifest | {"schema_version": SCHEMA_VERSION, "tensors_sha256": hashlib.sha256(payload).hexdigest()}
    manifest = json.loads(json.dumps(manifest))  # as it will be read: keys are strings, tuples are lists
    manifest["manifest_sha256"] = manifest_digest(manifest)
    staging = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        staging.mkdir()
        write_synced(staging / TENSORS, payload)
        if reference is not None:
            write_synced(staging / REFERENCE, reference)
        write_synced(staging / MANIFEST, json.dumps(manifest, indent=1).encode())
        try:
            staging.rename(path)
        except OSError as error:
            if path.exists():
                raise ArtifactError(f"{path} exists already; a saved chain is never overwritten") from error
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    sync_folder(path.parent)
    return manifest


def read_manifest(path: Path) -> Manifest:
    """The manifest of an artifact folder, checked against its own digest.

    Raises:
        ArtifactError: if it is missing, cannot be read, was altered, or is of a newer schema.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        version, digest = manifest["schema_version"], manifest["manifest_sha256"]
        _require_plain(manifest)
    except FileNotFoundError as error:
        raise ArtifactError(f"there is no saved chain at {path}: {MANIFEST} is missing") from error
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ArtifactError(f"the manifest of {path} cannot be read: {error!r}") from error
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise ArtifactError(
            f"{path} is of schema {version}, this Lathe reads up to {SCHEMA_VERSION}: upgrade Lathe to use it"
        )
    if digest != manifest_digest(manifest):
        raise ArtifactError(f"the manifest of {path} was altered: its SHA-256 does not match")
    require_field_types(path, manifest, FIELD_TYPES)
    return dict(manifest)


def _require_plain(value: Any, depth: int = 0) -> None:
    """Raise `ValueError` for JSON that Python's parser takes and others do not: what is read here is answered as JSON.

    That is deep nesting, integers of more than 64 bits, and text that is no Unicode.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise ValueError("it holds an integer of more than 64 bits")
    elif isinstance(value, list | dict):
        for inner in value:  # of an object, its keys
            _require_plain(inner, depth + 1)
        for inner in value.values() if isinstance(value, dict) else ():
            _require_plain(inner, depth + 1)


def require_field_types(path: Path, manifest: Manifest, types: Mapping[str, type]) -> None:
    """Raise `ArtifactError` unless the fields of the manifest of `path` are missing, null, or of the types given."""
    for field, expected in types.items():
        if not isinstance(manifest.get(field), expected | None):
            raise ArtifactError(f"the manifest of {path} cannot be read: {field} must be of type {expected.__name__}")


def read_artifact(path: Path) -> "tuple[Manifest, dict[str, Tensor]]":
    """Return the manifest and the tensors of an artifact folder, both checked.

    Raises:
        ArtifactError: if anything is missing, truncated, altered or too new.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    manifest, payload = read_serialized_artifact(path)
    try:
        return manifest, load(payload)
    except SafetensorError as error:
        raise ArtifactError(f"the tensors of {path} cannot be read: {error}") from error


def read_serialized_artifact(path: Path) -> tuple[Manifest, bytes]:
    """Return the manifest and the serialized tensors of an artifact folder, both checked against their digests.

    Raises:
        ArtifactError: if anything is missing, truncated, altered or too new.
    """
    manifest = read_manifest(path)
    try:
        payload = (path / TENSORS).read_bytes()
    except OSError as error:
        raise ArtifactError(f"the tensors of {path} cannot be read: {error}") from error
    if hashlib.sha256(payload).hexdigest() != manifest.get("tensors_sha256"):
        raise ArtifactError(f"the tensors of {path} were truncated or altered: their SHA-256 does not match")
    return manifest, payload


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of the manifest without its own digest, as canonical JSON."""
    rest = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_synced(path: Path, payload: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())


def replace_synced(path: Path, payload: bytes) -> None:
    """The same for a file that others may be reading: it is there whole, as it was or as it will be."""
    staging = path.with_name(f".{path.name}")
    try:
        write_synced(staging, payload)
        staging.replace(path)
    except BaseException:
        staging.unlink(missing_ok=True)  # on a full disk it would keep the last bytes
        raise


def sync_folder(path: Path) -> None:
    """Wait until the disk has the folder's entries, so that a rename survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
