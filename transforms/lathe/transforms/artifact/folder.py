"""Writing and reading of the artifact folder of a saved chain, whose digests are verified.

name/
├── manifest.json       schema, steps, dimensions, SHA-256 of the tensors and of the manifest itself,
│                       encoder, provenance, certificate
├── chain.safetensors   the fitted tensors, named <step>.<buffer>
└── reference.safetensors   perhaps the distribution of the fitted rows, see fit_distribution

The folder is written under a temporary name next to its final one, fsynced, and renamed: it exists
completely or not at all. Nothing in it is ever executed.
"""

import hashlib
import json
import logging
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lathe.transforms.beneath import read_beneath
from lathe.transforms.errors import ArtifactError
from lathe.transforms.files import make_folder, make_root, parse_json_object, read_plain_file, sync_folder, write_synced

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

SCHEMA_VERSION = 1
"""Newest manifest schema that can be read, and the one that is written."""

MANIFEST = "manifest.json"
TENSORS = "chain.safetensors"
DISTRIBUTION = "reference.safetensors"

Manifest = dict[str, Any]
"""The content of manifest.json."""

MAX_MANIFEST_BYTES = 16_000_000
"""Maximum bytes of a manifest. Those of fits have a few kilobytes, and a spectrum of 65,536 variances takes 1 MB."""

MAX_HEADER_BYTES = 256 * 1024
"""Maximum bytes of the header of a file of tensors: 2,500 tensors.

A chain of 64 steps has some hundred. The library takes 40 µs and 1.5 kB for each tensor, so that larger headers take
seconds.
"""

HEADER_LENGTH_BYTES = 8
"""Number of bytes at the start of a file of tensors that hold the length of its header, little-endian."""

FIELD_TYPES: Mapping[str, type] = {
    "steps": list,
    "normalize": bool,
    "input_dimensions": int,
    "output_dimensions": int,
    "nested": bool,
    "reference": dict,
}
"""Required type by manifest field, unless the field is missing or null.

These are the fields that a chain writes. `moments`, which serving does not need, is checked where it is read; all other
fields belong to the caller.
"""


def write_artifact(
    path: Path, manifest: Manifest, tensors: "Mapping[str, Tensor]", distribution: bytes | None = None
) -> Manifest:
    """Write a chain's manifest and tensors to a new artifact folder, atomically. An existing folder raises.

    Missing parent folders are created.

    Args:
        path: path of the new folder.
        manifest: fields of the manifest, JSON-serializable.
        tensors: fitted tensors by name.
        distribution: content of reference.safetensors, whose digest the manifest already holds; None for no such file.

    Returns:
        The manifest with the schema version and the digests added.

    Raises:
        ArtifactError: if the folder exists already.
        OSError: if it cannot be written; the partial folder is deleted.
    """
    from safetensors.torch import save  # imports torch, which reading a manifest does not need

    payload = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    manifest = manifest | {"schema_version": SCHEMA_VERSION, "tensors_sha256": hashlib.sha256(payload).hexdigest()}
    manifest = json.loads(json.dumps(manifest))  # as it will be read: keys are strings, tuples are lists
    manifest["manifest_sha256"] = manifest_digest(manifest)
    # Beside the final name, because a rename is atomic only within a file system; random, as writers may compete.
    staging = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    make_root(path.parent)

    try:
        make_folder(staging)
        write_synced(staging / TENSORS, payload)
        if distribution is not None:
            write_synced(staging / DISTRIBUTION, distribution)

        write_synced(staging / MANIFEST, json.dumps(manifest, indent=1).encode())
        # A check before the rename would race with other writers; the rename itself fails on a folder that holds files.
        try:
            staging.rename(path)
        except OSError as error:
            if path.exists():
                raise ArtifactError(f"{path} exists already; a saved chain is never overwritten") from error
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)

    # The rename is an entry of the parent folder, and survives a power cut only once that is synced.
    sync_folder(path.parent)
    return manifest


def read_file(path: Path, name: str, root: Path | None = None, max_bytes: int | None = None) -> bytes:
    """Return the bytes of the file `name` in the artifact folder `path`.

    Args:
        path: path of the artifact folder.
        name: name of the file.
        root: parent folder that no link may lead out of; None follows links anywhere.
        max_bytes: maximum bytes of the file; None for any number.

    Raises:
        OSError: if it cannot be read, is not a regular file or too large, or a link leads out of `root`.
    """
    if root is None:
        return read_plain_file(path / name, max_bytes)
    return read_beneath(root, str(path.relative_to(root) / name), max_bytes)


def display_name(path: Path) -> str:
    """Return the last two parts of a path, such as "chains/news", for error messages that must not show the rest."""
    return "/".join(path.parts[-2:])


def read_manifest(path: Path, root: Path | None = None) -> Manifest:
    """Read the manifest of an artifact folder. A missing, altered, malformed or too new manifest raises.

    `root` is as in `read_file`.

    Raises:
        ArtifactError: if it is missing, cannot be read, was altered, or is of a newer schema.
    """
    name = display_name(path)
    try:
        manifest: Manifest = parse_json_object(read_file(path, MANIFEST, root, MAX_MANIFEST_BYTES))
        version, digest = manifest["schema_version"], manifest["manifest_sha256"]
    except FileNotFoundError as error:
        raise ArtifactError(f"there is no saved chain at {name}: {MANIFEST} is missing") from error
    except OSError as error:
        raise ArtifactError(f"the manifest of {name} cannot be read: {error.strerror}") from error
    except KeyError as error:
        raise ArtifactError(f"the manifest of {name} cannot be read: {error} is missing") from error
    except ValueError as error:
        raise ArtifactError(f"the manifest of {name} cannot be read: {error!r}") from error

    # The version comes before the digest: a newer manifest should ask for an upgrade, not look altered.
    if type(version) is not int or not 1 <= version <= SCHEMA_VERSION:
        raise ArtifactError(
            f"{name} is of schema {version}, this Lathe reads up to {SCHEMA_VERSION}: upgrade Lathe to use it"
        )
    if digest != manifest_digest(manifest):
        raise ArtifactError(f"the manifest of {name} was altered: its SHA-256 does not match")

    require_field_types(path, manifest, FIELD_TYPES)
    for step in manifest.get("steps") or ():
        if not isinstance(step, dict) or not isinstance(step.get("kind"), str):
            raise ArtifactError(
                f"the manifest of {name} cannot be read: a step is an object with a kind, not {step!r:.80}"
            )

    return manifest


def require_field_types(path: Path, manifest: Manifest, types: Mapping[str, type]) -> None:
    """Check that fields of a manifest have the given types.

    Fields that are missing or null are not checked.

    Args:
        path: path of the artifact folder, for the message.
        manifest: content of the manifest.
        types: required type by field.

    Raises:
        ArtifactError: if a field has another type.
    """
    for field, expected in types.items():
        if not isinstance(manifest.get(field), expected | None):
            raise ArtifactError(
                f"the manifest of {display_name(path)} cannot be read: {field} must be of type {expected.__name__}"
            )


def read_artifact(path: Path, root: Path | None = None) -> "tuple[Manifest, dict[str, Tensor]]":
    """Read the manifest and the tensors of an artifact folder. Missing, altered or too new files raise.

    `root` is as in `read_file`.

    Returns:
        The manifest, and the tensors by name.

    Raises:
        ArtifactError: if anything is missing, truncated, altered or too new.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    manifest, payload = read_serialized_artifact(path, root)
    try:
        return manifest, load(payload)
    except (SafetensorError, KeyError) as error:  # a KeyError for a dtype that torch does not have
        raise ArtifactError(f"the tensors of {display_name(path)} cannot be read: {error}") from error


def read_serialized_artifact(path: Path, root: Path | None = None) -> tuple[Manifest, bytes]:
    """Read the manifest and the tensors, as bytes, of an artifact folder. Missing, altered or too new files raise.

    `root` is as in `read_file`.

    Returns:
        The manifest, and the tensors as the bytes of chain.safetensors.

    Raises:
        ArtifactError: if anything is missing, truncated, altered or too new.
    """
    manifest = read_manifest(path, root)
    try:
        payload = read_file(path, TENSORS, root)
    except OSError as error:
        raise ArtifactError(f"{TENSORS} of {display_name(path)} cannot be read: {error.strerror}") from error

    # The bytes that are hashed are the ones returned: the file is not read again, so it cannot change in between.
    if hashlib.sha256(payload).hexdigest() != manifest.get("tensors_sha256"):
        raise ArtifactError(
            f"the tensors of {display_name(path)} were truncated or altered: their SHA-256 does not match"
        )

    header = int.from_bytes(payload[:HEADER_LENGTH_BYTES], "little")
    if header > MAX_HEADER_BYTES:
        raise ArtifactError(
            f"the tensors of {display_name(path)} have a header of {header} bytes; at most {MAX_HEADER_BYTES} are read"
        )

    return manifest, payload


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest as canonical JSON, in hexadecimal.

    The field `manifest_sha256` is left out.
    """
    # Of the parsed fields, sorted and without spaces, so that reformatting the file does not count as altering it.
    digested = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    return hashlib.sha256(json.dumps(digested, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
