"""The encoders that a server may host: those in the settings, those that an operator added, and trained ones.

$LATHE_HOME/encoders.json   a JSON list like LATHE_ENCODERS, written by `lathe encoders add` and `remove`
trained/<name>/
├── pointer.json   which version is live, see lathe.service.chains.pointer
└── 1/ 2/ 3/       manifest.json, and model/, a sentence-transformers model

Settings find encoders by this module. `lathe.service.encoders.trained` publishes and promotes versions.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from lathe.transforms.files import read_plain_file, replace_synced

if TYPE_CHECKING:
    from filelock import FileLock
import re
from typing import Any

from lathe.training.settings import NAME_PATTERN

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
"""Settings of models that are loaded here, which an embeddings API has not."""


class EncoderSettings(BaseModel):
    """One encoder the server may host.

    Attributes:
        name: name by which requests select it.
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
        long_text: what becomes of texts longer than it reads: truncated, refused, or encoded as the mean of chunks.
        chat_template: whether texts are wrapped in an instruct model's chat template; None wraps them if there is one.
        trust_remote_code: whether code from the model's repository is run.
        idle_seconds: seconds without a request after which it is unloaded, 0 for never; None for `LATHE_IDLE_SECONDS`.
        load: whether it is served from the start, or only once an admin asks for it.
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
        """Return the settings unchanged if they fit together. Raise otherwise.

        Raises:
            ValueError: unless they name a model, or an upstream with only the settings that go with one.
        """
        if self.upstream is None:
            if self.model is None:
                raise ValueError("name a model, or an upstream")
            return self
        misplaced = [name for name in LOADED_ONLY if getattr(self, name) != type(self).model_fields[name].default]
        if misplaced:
            raise ValueError(f"{', '.join(misplaced)} and upstream exclude each other: the API's model runs elsewhere")
        if self.long_text == "mean":
            raise ValueError("long_text may be truncate or error with upstream: an API does not say how it cuts texts")
        return self

    def build_spec(self, dtype: Dtype) -> EncoderSpec:
        """Return the encoder spec that the training package loads, with these settings.

        Args:
            dtype: dtype to use if these settings name none.
        """
        fields = self.model_dump(exclude={"idle_seconds", "load", "dtype", "upstream"})
        if self.upstream is None:
            return EncoderSpec(**fields, dtype=self.dtype or dtype)
        return EncoderSpec(**(fields | {"model": self.upstream.model}), dtype="float32", upstream=self.upstream)


DEFAULT = EncoderSettings(name=DEFAULT_ENCODER.name, model=DEFAULT_ENCODER.model)


class AddedEncoders:
    """The encoders that were added to a state folder, stored in its `encoders.json`."""

    def __init__(self, home: Path) -> None:
        self.path = home / "encoders.json"

    def read(self) -> list[EncoderSettings]:
        """Return the settings of the encoders that were added to the state folder, or [] if there is no file.

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
        """Add an encoder to the file in the state folder, under the file's lock.

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
        """Remove the encoder of that name from the file in the state folder, under the file's lock.

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
    """Return pydantic's first error on an encoder's settings as a `BadValueError` of one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    return BadValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")


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
