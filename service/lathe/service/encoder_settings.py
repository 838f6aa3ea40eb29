"""Encoders that a server may host: encoders in the settings, added encoders, and trained encoders.

EncoderSettings   settings of one encoder, as in LATHE_ENCODERS
AddedEncoders     settings of encoders that an operator added, in a file of the state folder:
                  $LATHE_HOME/encoders.json   a JSON list like LATHE_ENCODERS, of `lathe encoders add` and `remove`
TrainedSpecs      specs of the versions of trained encoders, in a folder:
                  trained/<name>/
                  ├── pointer.json   which version is live, see lathe.service.chains.pointer
                  └── 1/ 2/ 3/       manifest.json, and model/, a sentence-transformers model

The server's settings find encoders with this module. `lathe.service.encoders.trained` publishes and promotes versions.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lathe.service.errors import BadValueError, ConflictError, UnknownNameError
from lathe.training.encoder.devices import Dtype
from lathe.training.encoder.spec import (
    DEFAULT_ENCODER,
    Attention,
    ChatTemplate,
    EncoderSpec,
    LongText,
    Pooling,
    UpstreamSpec,
)
from lathe.training.settings import NAME_PATTERN
from lathe.transforms.files import read_plain_file, replace_synced

if TYPE_CHECKING:
    from filelock import FileLock

ENCODER_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$"
"""Pattern of an encoder's name, which may have a tag, as in `nomic:latest`."""


LOADED_ONLY = (
    "model",
    "pooling",
    "layer",
    "dtype",
    "attention",
    "compile",
    "chat_template",
    "trust_remote_code",
    "idle_seconds",
)
"""Settings of models that are loaded here, which do not apply to an embeddings API."""


class EncoderSettings(BaseModel):
    """Settings of one encoder that the server may host.

    Attributes:
        name: name by which requests select the encoder.
        model: a folder or a hub id, unless there is an `upstream`.
        upstream: an embeddings API that encodes the texts in place of a model that is loaded.
        revision: revision of the hub id.
        pooling: pooling that replaces the model's own; None for the model's own.
        layer: number of layers to use; None for all.
        prompts: texts put before inputs, by name; added to the model's own.
        default_prompt_name: name of the prompt for requests that name none.
        max_length: maximum tokens read of a text; None for the model's own.
        dtype: dtype of the model; None for the dtype of `LATHE_DTYPE`.
        attention: attention implementation; `auto` chooses by the hardware.
        compile: whether torch.compile compiles the model; the first batches then take minutes.
        long_text: what becomes of texts longer than the model reads: truncated, refused, or encoded as the mean of
            chunks.
        chat_template: whether texts are wrapped in an instruct model's chat template; None wraps them if there is one.
        trust_remote_code: whether code from the model's repository is run.
        idle_seconds: seconds without a request after which the model is unloaded, 0 for never; None for
            `LATHE_IDLE_SECONDS`.
        load: whether the encoder is served from the start, or only after an admin adds it.
    """

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=ENCODER_NAME_PATTERN)]
    model: Annotated[str, Field(min_length=1)] | None = None
    upstream: UpstreamSpec | None = None
    revision: str | None = None
    pooling: Pooling | None = None
    layer: Annotated[int, Field(ge=1)] | None = None
    prompts: dict[str, str] = {}
    default_prompt_name: str | None = None
    max_length: Annotated[int, Field(ge=2)] | None = None
    dtype: Dtype | None = None
    attention: Attention = "auto"
    compile: bool = False
    long_text: LongText = "truncate"
    chat_template: ChatTemplate | None = None
    trust_remote_code: bool = False
    idle_seconds: Annotated[float, Field(ge=0)] | None = None
    load: bool = True

    @model_validator(mode="after")
    def check_combination(self) -> "EncoderSettings":
        """Raise `ValueError` if the settings contradict each other, else return them unchanged.

        Raises:
            ValueError: if neither a model nor an upstream is named, or with an upstream, if a setting of loaded models
                is set or `long_text` is "mean".
        """
        if self.upstream is None:
            if self.model is None:
                raise ValueError("set model or upstream")
            return self
        misplaced = [name for name in LOADED_ONLY if getattr(self, name) != type(self).model_fields[name].default]
        if misplaced:
            raise ValueError(f"{', '.join(misplaced)} cannot be set with upstream: the API's model runs elsewhere")
        if self.long_text == "mean":
            raise ValueError("long_text must be truncate or error with upstream: an API does not tell its tokens")
        return self

    def build_spec(self, dtype: Dtype) -> EncoderSpec:
        """Build the spec with which the training package loads this encoder.

        Args:
            dtype: dtype to use if the settings name none.
        """
        fields = self.model_dump(exclude={"idle_seconds", "load", "dtype", "upstream"})
        if self.upstream is None:
            return EncoderSpec(**fields, dtype=self.dtype or dtype)
        return EncoderSpec(**(fields | {"model": self.upstream.model}), dtype="float32", upstream=self.upstream)


DEFAULT = EncoderSettings(name=DEFAULT_ENCODER.name, model=DEFAULT_ENCODER.model)


class AddedEncoders:
    """Settings of the encoders that were added to a state folder, stored in its `encoders.json`."""

    def __init__(self, home: Path) -> None:
        self.path = home / "encoders.json"

    def read(self) -> list[EncoderSettings]:
        """Read the settings of the added encoders. Without a file, the list is empty. A damaged file raises.

        Raises:
            ValueError: if the file is damaged.
        """
        try:
            return [EncoderSettings(**item) for item in orjson.loads(read_plain_file(self.path))]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (ValueError, TypeError, ValidationError) as error:
            raise ValueError(f"{self.path.name} in the state folder cannot be read: {type(error).__name__}") from None

    def add(self, encoder: EncoderSettings, others: set[str]) -> None:
        """Add an encoder to the file, under the file's lock. A name that is in use raises.

        Args:
            encoder: the encoder.
            others: names of all other encoders.

        Raises:
            ConflictError: if the name is in use.
        """
        with self._lock():
            known = self.read()
            if encoder.name in others | {item.name for item in known}:
                raise ConflictError(f"the name {encoder.name} is in use by another encoder", param="name")
            self._write([*known, encoder])

    def remove(self, name: str) -> None:
        """Remove the encoder of that name from the file, under the file's lock. An unknown name raises.

        Raises:
            UnknownNameError: if no encoder of that name was added.
        """
        with self._lock():
            known = self.read()
            remaining = [item for item in known if item.name != name]
            if len(remaining) == len(known):
                raise UnknownNameError(f"no encoder {name!r} was added to the state folder", param="name")
            self._write(remaining)

    def _write(self, encoders: list[EncoderSettings]) -> None:
        content = [encoder.model_dump(exclude_defaults=True) for encoder in encoders]
        replace_synced(self.path, orjson.dumps(content, option=orjson.OPT_INDENT_2), private=True)

    def _lock(self) -> "FileLock":
        from lathe.training.locks import lock_file  # after the help of commands, which reads this module

        return lock_file(self.path.with_name(f".{self.path.name}.lock"))


def convert_settings_error(error: ValidationError) -> BadValueError:
    """Convert pydantic's first error in an encoder's settings to a `BadValueError` of one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    return BadValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")


MODEL, MANIFEST = "model", "manifest.json"
"""Names of the folder of a trained version's model, and of the file that describes the version."""

KEPT_FIELDS = ("long_text", "chat_template")
"""Fields of the base encoder's spec that trained versions keep. All other fields are in the model's own files."""

_REFERENCE = re.compile(rf"({NAME_PATTERN.strip('^$')})(?:@(live|[1-9][0-9]{{0,8}}))?")


def split_trained_name(name: str) -> tuple[str, int | None] | None:
    """Split `NAME`, `NAME@live` or `NAME@V` into name and version. The version is None for the live version.

    The result is None if the text has another form.
    """
    match = _REFERENCE.fullmatch(name)
    if match is None:
        return None
    version = match[2]
    return match[1], None if version in (None, "live") else int(version)


class TrainedSpecs:
    """Specs of the versions of trained encoders in one folder.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def read_live(self, name: str) -> int | None:
        """Read the number of an encoder's live version. None if none is live or pointer.json cannot be read."""
        try:
            live = orjson.loads((self.root / name / "pointer.json").read_bytes())["live"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return live if type(live) is int else None

    def find(self, name: str, dtype: Dtype) -> EncoderSpec | None:
        """Find the spec of a version of a trained encoder: `NAME` for the live version, or `NAME@V`. None if missing.

        `NAME@live` also names the live version.

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
        """Read the manifest of a version. A missing or damaged manifest is an empty dict."""
        try:
            manifest: dict[str, Any] = orjson.loads((self.root / name / str(version) / MANIFEST).read_bytes())
        except (OSError, ValueError):  # the model can be loaded without it
            return {}
        return manifest if isinstance(manifest, dict) else {}


def build_trained_spec(root: Path, name: str, version: int, manifest: dict[str, Any], dtype: Dtype) -> EncoderSpec:
    """Build the spec by which a version of a trained encoder is loaded. The spec's name is `NAME@V`."""
    base = manifest.get("base") or {}
    kept: dict[str, Any] = {field: base[field] for field in KEPT_FIELDS if base.get(field) is not None}
    return EncoderSpec(name=f"{name}@{version}", model=str(root / name / str(version) / MODEL), dtype=dtype, **kept)
