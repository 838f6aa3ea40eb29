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
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transforms.beneath import read_beneath
from transforms.errors import ArtifactError
from transforms.files import make_folder, make_root, sync_folder, write_synced

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
    "reference": dict,
}
"""What the fields hold that a chain writes, if they are there and not null; `moments`, which serving does without, is
checked where it is read, and the others are the caller's."""


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
    make_root(path.parent)
    try:
        make_folder(staging)
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


def read_file(path: Path, name: str, root: Path | None = None) -> bytes:
    """Return the bytes of a file of an artifact folder.

    Args:
        path: of the artifact folder.
        name: of the file.
        root: a folder around it that no link may lead out of; None follows links anywhere.

    Raises:
        OSError: if it cannot be read, or a link leads out of `root`.
    """
    return (path / name).read_bytes() if root is None else read_beneath(root, str(path.relative_to(root) / name))


def called(path: Path) -> str:
    """Return what errors call an artifact folder: its last two names, for the rest is the machine's own affair."""
    return "/".join(path.parts[-2:])


def read_manifest(path: Path, root: Path | None = None) -> Manifest:
    """The manifest of an artifact folder, checked against its own digest; `root` as in `read_file`.

    Raises:
        ArtifactError: if it is missing, cannot be read, was altered, or is of a newer schema.
    """
    name = called(path)
    try:
        manifest = json.loads(read_file(path, MANIFEST, root))
        version, digest = manifest["schema_version"], manifest["manifest_sha256"]
        _require_plain(manifest)
    except FileNotFoundError as error:
        raise ArtifactError(f"there is no saved chain at {name}: {MANIFEST} is missing") from error
    except OSError as error:
        raise ArtifactError(f"the manifest of {name} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ArtifactError(f"the manifest of {name} cannot be read: {error!r}") from error
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise ArtifactError(
            f"{name} is of schema {version}, this Lathe reads up to {SCHEMA_VERSION}: upgrade Lathe to use it"
        )
    if digest != manifest_digest(manifest):
        raise ArtifactError(f"the manifest of {name} was altered: its SHA-256 does not match")
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
            raise ArtifactError(
                f"the manifest of {called(path)} cannot be read: {field} must be of type {expected.__name__}"
            )


def read_artifact(path: Path, root: Path | None = None) -> "tuple[Manifest, dict[str, Tensor]]":
    """Return the manifest and the tensors of an artifact folder, both checked; `root` as in `read_file`.

    Raises:
        ArtifactError: if anything is missing, truncated, altered or too new.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    manifest, payload = read_serialized_artifact(path, root)
    try:
        return manifest, load(payload)
    except SafetensorError as error:
        raise ArtifactError(f"the tensors of {called(path)} cannot be read: {error}") from error


def read_serialized_artifact(path: Path, root: Path | None = None) -> tuple[Manifest, bytes]:
    """Return the manifest and the serialized tensors of an artifact folder, both checked against their digests.

    `root` as in `read_file`.

    Raises:
        ArtifactError: if anything is missing, truncated, altered or too new.
    """
    manifest = read_manifest(path, root)
    try:
        payload = read_file(path, TENSORS, root)
    except OSError as error:
        raise ArtifactError(f"{TENSORS} of {called(path)} cannot be read: {error.strerror}") from error
    if hashlib.sha256(payload).hexdigest() != manifest.get("tensors_sha256"):
        raise ArtifactError(f"the tensors of {called(path)} were truncated or altered: their SHA-256 does not match")
    return manifest, payload


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of the manifest without its own digest, as canonical JSON."""
    rest = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
