"""Settings, read once from the environment and passed on."""

import ipaddress
import os
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from training.encoders import DEFAULT_ENCODER, EncoderSpec

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class EncoderSettings(BaseModel):
    """One encoder the server hosts; see `training.encoders.EncoderSpec`."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    model: Annotated[str, Field(min_length=1)]
    revision: str | None = None
    pooling: Literal["mean", "cls", "max", "lasttoken"] | None = None
    layer: Annotated[int, Field(ge=1)] | None = None
    prompts: dict[str, str] = {}
    max_length: Annotated[int, Field(ge=2)] | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    trust_remote_code: bool = False

    def spec(self) -> EncoderSpec:
        """The same for the layer below."""
        return EncoderSpec(**self.model_dump())


class Settings(BaseSettings):
    """Everything about a server that can be set; each is an environment variable `LATHE_…`."""

    model_config = SettingsConfigDict(env_prefix="LATHE_", env_ignore_empty=True, frozen=True)

    home: Path = Path("~/.lathe")
    """State: chains, jobs, the admin key."""
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    encoders: Annotated[tuple[EncoderSettings, ...], NoDecode] = ()
    """A JSON list, or a file with one; the first is the default. Empty: all-MiniLM-L6-v2."""
    api_keys: Annotated[tuple[str, ...], NoDecode] = ()
    """Comma-separated; without any, a loopback server is free to use."""
    admin_keys: Annotated[tuple[str, ...], NoDecode] = ()
    """Comma-separated; without any, one is generated in the state folder."""
    public_without_keys: bool = False
    """Serve an address other machines reach although no API keys are set."""
    data_root: Path | None = None
    """Where the paths that a fit names over HTTP may lie; unset: nowhere."""
    device: str | None = None
    """torch device of the encoders; unset: the best there is."""
    threads: Annotated[int, Field(ge=1)] = os.cpu_count() or 1
    """CPU threads of one forward pass."""
    job_threads: Annotated[int, Field(ge=1)] = max(1, (os.cpu_count() or 1) // 2)
    """CPU threads of a job, which shares the machine with serving."""
    max_texts: Annotated[int, Field(ge=1)] = 2048
    max_vectors: Annotated[int, Field(ge=1)] = 8192
    max_body_bytes: Annotated[int, Field(ge=1)] = 32_000_000
    max_queued_texts: Annotated[int, Field(ge=1)] = 16_384
    """Texts accepted but not yet encoded; past that, 429."""

    @field_validator("home", "data_root")
    @classmethod
    def expand(cls, path: Path | None) -> Path | None:
        """Resolve ~ and relative paths once, at start."""
        return None if path is None else path.expanduser().absolute()

    @field_validator("api_keys", "admin_keys", mode="before")
    @classmethod
    def split_keys(cls, value: Any) -> Any:
        """Keys from a comma-separated string."""
        return tuple(key.strip() for key in value.split(",") if key.strip()) if isinstance(value, str) else value

    @field_validator("encoders", mode="before")
    @classmethod
    def read_encoders(cls, value: Any) -> Any:
        """Encoders from JSON, or from a file of JSON."""
        if not isinstance(value, str) or not value.strip():
            return value or ()
        text = value if value.lstrip().startswith("[") else Path(value).expanduser().read_text()
        return orjson.loads(text)

    @model_validator(mode="after")
    def check(self) -> "Settings":
        """Refuse what could only go wrong later."""
        names = [encoder.name for encoder in self.encoders]
        if len(set(names)) < len(names):
            raise ValueError(f"two encoders share a name: {', '.join(names)}")
        return self

    @cached_property
    def specs(self) -> tuple[EncoderSpec, ...]:
        """The encoders to host; the first is the default."""
        return tuple(encoder.spec() for encoder in self.encoders) or (DEFAULT_ENCODER,)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def require_safe(self) -> None:
        """Raise `ValueError` for a public address that anybody could use."""
        if not self.loopback and not self.api_keys and not self.public_without_keys:
            raise ValueError(
                f"{self.host} can be reached from other machines and no keys are set: set LATHE_API_KEYS, "
                "or LATHE_PUBLIC_WITHOUT_KEYS=true if anybody may use it"
            )


def read_settings(**overrides: Any) -> Settings:
    """Settings from the environment, with those given that are not None.

    Raises:
        ValueError: with one line for each setting that cannot be used.
    """
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        lines = [
            f"LATHE_{'.'.join(str(part) for part in e['loc']).upper() or 'settings'}: {e['msg']}"
            for e in error.errors(include_input=False, include_url=False)
        ]
        raise ValueError("; ".join(lines)) from None
    except OSError as error:
        raise ValueError(f"LATHE_ENCODERS: {error.filename} cannot be read: {error.strerror}") from None
