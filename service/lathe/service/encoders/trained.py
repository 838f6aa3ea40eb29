"""Trained encoders: versions `name@version` in a folder, with a live version of each name, as chains have them.

trained/<name>/<version>/
├── manifest.json   base, fingerprint, method, certificate, provenance, digests of the files
└── model/          a sentence-transformers model
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from lathe.service.chains.names import require_name
from lathe.service.chains.version_folder import VersionFolder
from lathe.service.encoder_settings import MANIFEST, MODEL, build_trained_spec
from lathe.service.errors import BadValueError
from lathe.training.encoder.devices import Dtype
from lathe.training.encoder.spec import EncoderSpec
from lathe.transforms.errors import ArtifactError
from lathe.transforms.files import make_folder, read_pieces, sync_folder, write_pieces, write_synced

MANIFEST_SCHEMA = 1
"""Version of the manifest's format."""

SUFFIXES = frozenset({".json", ".txt", ".safetensors", ".model", ".jinja", ".md"})
"""Endings of the files that a model may have: weights are safetensors, nothing is a pickle or code."""


class TrainedEncoders(VersionFolder):
    """The trained encoders in one folder, and changes to them."""

    kind = "encoder"

    def publish(
        self,
        name: str,
        model: Path,
        manifest: Mapping[str, Any],
        promote: bool | None,
        job: str | None = None,
    ) -> tuple[int, bool]:
        """Copy a trained model as the next version of an encoder. Return the version number, and whether it is live.

        Args:
            name: name of the encoder.
            model: folder of the model, in sentence-transformers' format.
            manifest: what is known of the version; name, version, files and job are added.
            promote: whether to make the version live; None does so if no version is live.
            job: id of the job that trained it; a job that runs twice publishes once.

        Raises:
            BadValueError: if the name is not valid, or the model has files that no version may have.
        """
        require_name(name, "an encoder")
        files = digest_files(model)

        def write(folder: Path, version: int) -> None:
            _copy_model(model, folder / MODEL, files)
            complete = {
                "schema": MANIFEST_SCHEMA,
                "name": name,
                "version": version,
                **manifest,
                "files": files,
                "job": job,
            }
            write_synced(folder / MANIFEST, orjson.dumps(complete, option=orjson.OPT_INDENT_2))

        return self.add_version(name, promote, job, write)

    def check_version(self, name: str, version: int) -> dict[str, Any]:
        """Check the digests of a version's files, and return its manifest.

        Raises:
            ArtifactError: if a file is missing, added or changed.
        """
        manifest = self.manifest(name, version)
        ref = f"{name}@{version}"
        try:
            files = digest_files(self.root / name / str(version) / MODEL)
        except (OSError, BadValueError) as error:
            raise ArtifactError(f"the files of the encoder {ref} cannot be used: {error}") from error
        if files != manifest["files"]:
            changed = sorted(path for path, _ in files.items() ^ manifest["files"].items())
            raise ArtifactError(f"the files of the encoder {ref} are not those that were published: {changed[0]}")
        return manifest

    def manifest(self, name: str, version: int) -> dict[str, Any]:
        """Return the manifest of a version, read from its file.

        Raises:
            ArtifactError: if it is missing or damaged.
        """
        try:
            return parse_manifest((self.root / name / str(version) / MANIFEST).read_bytes())
        except (OSError, ValueError) as error:
            raise ArtifactError(f"the manifest of the encoder {name}@{version} cannot be read: {error}") from error

    def describe_version(self, name: str, version: int) -> dict[str, Any]:
        """Return the manifest of a version with its `state`, without the list of its files.

        See `VersionFolder.describe_version`.
        """
        described = super().describe_version(name, version)
        return {key: described[key] for key in described if key != "files"}

    def build_spec(self, name: str, version: int, dtype: Dtype) -> EncoderSpec:
        """Return the spec by which a version that exists is loaded.

        Raises:
            ArtifactError: if its manifest is damaged.
        """
        return build_trained_spec(self.root, name, version, self.manifest(name, version), dtype)


def parse_manifest(content: bytes) -> dict[str, Any]:
    """Parse the JSON of a manifest, check that it has what every manifest has, and return it.

    Raises:
        ValueError: if it is damaged, or of a newer version of Lathe.
    """
    manifest = orjson.loads(content)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise ValueError("it has no list of files")
    if manifest.get("schema") != MANIFEST_SCHEMA:
        raise ValueError(f"its format is {manifest.get('schema')!r}; this version of Lathe reads {MANIFEST_SCHEMA}")
    for path, digest in manifest["files"].items():
        _require_model_file(path)
        if not isinstance(digest, str):
            raise ValueError("a digest is not a text")
    return manifest


def _require_model_file(path: str) -> None:
    """Raise `BadValueError` unless a relative path can be the path of a model's file.

    Pickles and code are refused, because loading them would run what they say.
    """
    parts = path.split("/")
    if any(part in ("", ".", "..") or part.startswith(".") for part in parts) or "\\" in path or "\0" in path:
        raise BadValueError(f"{path[:80]!r} is not a path of a model's file")
    if Path(path).suffix not in SUFFIXES:
        raise BadValueError(
            f"a trained encoder cannot have the file {path[:80]}: its files end in {', '.join(sorted(SUFFIXES))}; a "
            "model with code of its own is trained into a folder, with --out"
        )


def _list_model_files(model: Path) -> list[str]:
    """Return the files in a model's folder as sorted relative paths. Check that a version may have them.

    Raises:
        BadValueError: if the folder has a link, or a file that no version may have.
    """
    files = []
    for path in sorted(model.rglob("*")):
        if path.is_symlink():
            raise BadValueError(f"the model has a link, {path.name}: its files must be plain files")
        if path.is_file():
            files.append(path.relative_to(model).as_posix())
    for file in files:
        _require_model_file(file)
    return files


def digest_files(model: Path) -> dict[str, str]:
    """Return `{relative path: SHA-256}` of the files in a model's folder, in hexadecimal.

    Raises:
        BadValueError: if the folder has a link, or a file that no version may have.
    """
    digests = {}
    for path in _list_model_files(model):
        with (model / path).open("rb") as file:
            digests[path] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def _copy_model(source: Path, target: Path, files: Mapping[str, str]) -> None:
    """Copy the files of a model to a new folder, synced to disk. Raise `ArtifactError` if a file lost its digest."""
    for path, digest in files.items():
        make_folder((target / path).parent)
        with (source / path).open("rb") as file:
            copied = write_pieces(target / path, read_pieces(file))
        if copied != digest:
            raise ArtifactError(f"the file {path} of the model changed while it was copied")
        sync_folder((target / path).parent)
