"""The specs of trained encoders, read from the files of their folder, without the code that publishes versions.

trained/<name>/
├── pointer.json   which version is live, see lathe.service.chains.pointer
└── 1/ 2/ 3/       manifest.json, and model/, a sentence-transformers model

Settings find encoders by this module. `lathe.service.encoders.trained` publishes and promotes versions.
"""

import re
from pathlib import Path
from typing import Any

import orjson

from lathe.training.encoder.devices import Dtype
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.settings import NAME_PATTERN

MODEL, MANIFEST = "model", "manifest.json"
"""Names of a version's folder with the model and of its file with what is known of it."""

KEPT_FIELDS = ("long_text", "chat_template")
"""Fields of the base encoder's spec that its trained versions keep; all others are in the model's own files."""

_REFERENCE = re.compile(rf"({NAME_PATTERN.strip('^$')})(?:@(live|[1-9][0-9]{{0,8}}))?")


def split_trained_name(name: str) -> tuple[str, int | None] | None:
    """Return the name and version in `NAME`, `NAME@live` or `NAME@V`, or None if the text has another form.

    The version is None for the live version.
    """
    match = _REFERENCE.fullmatch(name)
    if match is None:
        return None
    version = match[2]
    return match[1], None if version in (None, "live") else int(version)


class TrainedSpecs:
    """The specs of the trained encoders in one folder.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def read_live(self, name: str) -> int | None:
        """Return the live version of an encoder, or None if none is live or the file that says it cannot be read."""
        try:
            live = orjson.loads((self.root / name / "pointer.json").read_bytes())["live"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return live if type(live) is int else None

    def find(self, name: str, dtype: Dtype) -> EncoderSpec | None:
        """Return the spec of a version of a trained encoder, `NAME` for the live one or `NAME@V`, or None.

        Args:
            name: name of the encoder.
            dtype: dtype that the model is loaded in.
        """
        parts = split_trained_name(name)
        if parts is None:
            return None
        version = self.read_live(parts[0]) if parts[1] is None else parts[1]
        if version is None or not (self.root / parts[0] / str(version) / MANIFEST).is_file():
            return None
        return build_trained_spec(self.root, parts[0], version, self._read_manifest(parts[0], version), dtype)

    def list_live(self, dtype: Dtype) -> list[EncoderSpec]:
        """Return the specs of the live versions of all trained encoders in the folder, sorted by name."""
        if not self.root.is_dir():
            return []
        found = (self.find(folder.name, dtype) for folder in sorted(self.root.iterdir()) if folder.is_dir())
        return [spec for spec in found if spec is not None]

    def _read_manifest(self, name: str, version: int) -> dict[str, Any]:
        """Return the manifest of a version, or an empty dict if it is missing or damaged."""
        try:
            manifest: dict[str, Any] = orjson.loads((self.root / name / str(version) / MANIFEST).read_bytes())
        except (OSError, ValueError):  # the model's own settings are still right
            return {}
        return manifest if isinstance(manifest, dict) else {}


def build_trained_spec(root: Path, name: str, version: int, manifest: dict[str, Any], dtype: Dtype) -> EncoderSpec:
    """Return the spec by which a version of a trained encoder is loaded. Its name is `NAME@V`."""
    base = manifest.get("base") or {}
    kept: dict[str, Any] = {field: base[field] for field in KEPT_FIELDS if base.get(field) is not None}
    return EncoderSpec(name=f"{name}@{version}", model=str(root / name / str(version) / MODEL), dtype=dtype, **kept)
