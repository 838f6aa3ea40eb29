"""Settings of a server, read once from the environment and passed on."""

import ipaddress
import os
import re
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlsplit

import orjson
from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from lathe.service.encoder_settings import DEFAULT, AddedEncoders, EncoderSettings, TrainedSpecs
from lathe.service.home import Home
from lathe.service.key_file import KEY_VARIABLES, KeyFile
from lathe.training.encoder.devices import Dtype, best_device
from lathe.training.encoder.spec import EncoderSpec, StoreSettings, VectorStores
from lathe.transforms.files import expand_home, read_plain_file
from lathe.transforms.suggestions import find_similar

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""CPU cores this process may use; a container's CPU quota is not considered, so set LATHE_THREADS too."""

PARSED_TIMES = 16
"""Memory for all bodies being parsed, as a multiple of the largest body: parsed, short numbers take 16 times theirs."""

MAX_CPU_WORKERS = 4
"""Maximum default number of worker processes per encoder on a CPU; a small model takes half a gigabyte in each."""

HOST = re.compile(r"\*|[0-9a-f:]+|[^\s:/?#@*\[\]]+")
ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@*]+")


class Settings(BaseSettings):
    """Settings of a server, each an environment variable `LATHE_…`."""

    model_config = SettingsConfigDict(env_prefix="LATHE_", env_ignore_empty=True, frozen=True)

    home: Path = Path("~/.lathe")
    """State folder: chains, indexes, jobs, the admin key."""
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    root_path: str = ""
    """Path below which a proxy offers the server, such as /lathe. The proxy may strip it from requests or not."""
    encoders: Annotated[tuple[EncoderSettings, ...], NoDecode] = ()
    """A JSON list, or a file with one; the first encoder is the default. Unset: all-MiniLM-L6-v2. Encoders added to the
    state folder come after them."""
    api_keys_file: Annotated[KeyFile | None, NoDecode] = None
    """A file with further API keys, one per line."""
    admin_keys_file: Annotated[KeyFile | None, NoDecode] = None
    """A file with further admin keys, one per line."""
    read_only_keys_file: Annotated[KeyFile | None, NoDecode] = None
    """A file with further read-only keys, one per line."""
    api_keys: Annotated[tuple[str, ...], NoDecode, Field(repr=False, validate_default=True)] = ()
    """Comma-separated keys for use; unset: a server on a loopback address needs no key, on any other an admin key."""
    admin_keys: Annotated[tuple[str, ...], NoDecode, Field(repr=False, validate_default=True)] = ()
    """Comma-separated keys for administration; unset: one is generated in the state folder."""
    read_only_keys: Annotated[tuple[str, ...], NoDecode, Field(repr=False, validate_default=True)] = ()
    """Comma-separated keys that embed, reduce, search and read, but neither write nor delete items of indexes. With
    them, use needs a key."""
    public_without_keys: bool = False
    """Whether anyone may use a server without API keys at an address that other machines reach; without this, every
    request there needs an admin key."""
    cors_origins: Annotated[tuple[str, ...], NoDecode] = ()
    """Comma-separated origins whose web pages may call the server from a browser, or *; unset: none."""
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """Comma-separated names, besides loopback names, that the header `Host` of a request may hold, or *. Unset: any
    name if clients need keys; none without keys, as a web page could give this machine's address its own name."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that the service logs; info has a line for each request."""
    index_url: Annotated[str, Field(repr=False)] = ""
    """Where indexes are stored: http://host:19530[/database] of a Milvus, or a file of Milvus Lite, FILE.db; unset: in
    the state folder. Needs the extra `milvus`."""
    index_token: Annotated[str, Field(repr=False)] = ""
    """Credentials for that Milvus: user:password, or an API key."""
    redis_url: Annotated[str, Field(repr=False)] = ""
    """Redis that replicas share: redis://[[user]:password@]host[:6379][/database], rediss:// with TLS, or unix:// with
    a socket's path; unset: all state is in the state folder. Needs the extra `redis`."""
    redis_cache_bytes: Annotated[int, Field(ge=0)] = 1_000_000_000
    """Bytes of that Redis for cached vectors of texts; 0 turns that cache off."""
    redis_cache_seconds: Annotated[int, Field(ge=2)] = 7 * 24 * 3600
    """Seconds after which a cached vector expires there."""
    drift: bool = True
    """Whether to compare live vectors with those that chains were fitted on; see docs/drift.md."""
    drift_window: Annotated[int, Field(ge=1000)] = 5000
    """Number of latest rows that drift is measured on, of each encoder and version; sums of up to twice as many."""
    drift_threshold: Annotated[float, Field(gt=0, lt=1)] = 0.78
    """Mean percentile among held-out rows above which a chain is stale; docs/drift.md tells how it was chosen."""
    data_root: Path | None = None
    """Folder that holds all paths that requests may name as a source; unset: requests may name none."""
    device: str | None = None
    """torch device of the encoders; unset: the best available."""
    dtype: Dtype = "auto"
    """Dtype of encoders that name none themselves; auto is bfloat16 if the hardware supports it, else float32."""
    idle_seconds: Annotated[float, Field(ge=0)] = 0.0
    """Seconds without a request after which an encoder that names none itself is unloaded; 0: never."""
    idle_requests: Literal["hold", "refuse"] = "hold"
    """What becomes of a request for an unloaded encoder: it waits until the encoder is loaded, or is answered 503 with
    the seconds that this took the last time."""
    model_bytes: Annotated[int, Field(ge=0)] = 0
    """Maximum bytes of the weights of all loaded encoders; past that, the least recently used is unloaded. 0: no
    limit."""
    threads: Annotated[int, Field(ge=1)] = CORES
    """CPU threads of all workers of an encoder together, and of searching an index."""
    workers: Annotated[int, Field(ge=1, le=256)] | None = None
    """Worker processes of each encoder, which share its threads; unset: one on a GPU, up to 4 on a CPU."""
    max_batch_tokens: Annotated[int, Field(ge=1)] | None = None
    """Maximum tokens of a batch, padding included; unset: selected by device."""
    worker_seconds: Annotated[float, Field(gt=0)] = 120.0
    """Seconds without a reply after which a worker is considered dead and restarted."""
    shutdown_seconds: Annotated[int, Field(ge=0)] = 30
    """Seconds in which a server that was asked to stop may finish accepted requests."""
    cache_bytes: Annotated[int, Field(ge=0)] = 100_000_000
    """Bytes of memory for cached vectors of texts; 0 turns the cache off."""
    upstream_bytes: Annotated[int, Field(ge=0)] = 10_000_000_000
    """Bytes of the state folder for vectors that embeddings APIs answered, oldest deleted first; 0 stores none."""
    encoded_bytes: Annotated[int, Field(ge=0)] = 4_000_000_000
    """Bytes of the state folder for vectors of texts that commands and jobs encoded, oldest deleted first; 0 stores
    none."""
    job_threads: Annotated[int, Field(ge=1)] = CORES
    """CPU threads of a job; unset: all cores, of which it takes what serving leaves."""
    job_nice: Annotated[int, Field(ge=0, le=19)] = 19
    """How far a job yields to other processes: 19 the most, 0 not at all."""
    max_texts: Annotated[int, Field(ge=1)] = 2048
    """Maximum texts of a request."""
    max_vectors: Annotated[int, Field(ge=1)] = 8192
    """Maximum vectors, or ids of items, of a request."""
    max_body_bytes: Annotated[int, Field(ge=1)] = 32_000_000
    """Maximum bytes of a request's body; past that, 413."""
    body_memory_bytes: Annotated[int, Field(ge=1)] | None = None
    """Maximum bytes of the bodies of all requests together, bodies up to 64 kB not counted; past that, 429. Unset: 8
    times LATHE_MAX_BODY_BYTES."""
    body_seconds: Annotated[float, Field(gt=0)] = 120.0
    """Maximum seconds from the end of a request's headers to the end of its body; past that, 408."""
    keep_alive_seconds: Annotated[int, Field(ge=1)] = 75
    """Seconds without a request after which a connection is closed. They must be more than the proxy or balancer in
    front keeps one, which might otherwise send a request at the moment of closing."""
    max_connections: Annotated[int, Field(ge=1)] = 4096
    """Maximum open connections; past that, or near the system's limit of open files, 503."""
    max_queued_texts: Annotated[int, Field(ge=1)] = 16_384
    """Maximum texts accepted but not yet answered, per encoder; past that, 429."""
    max_queued_tokens: Annotated[int, Field(ge=1)] = 1_000_000
    """The same in tokens, estimated by length; a single request of several texts with more is answered 413."""

    @field_validator("home", "data_root")
    @classmethod
    def expand_path(cls, path: Path | None) -> Path | None:
        """Return the path with ~ expanded, made absolute, so that later changes of directory do not matter."""
        return None if path is None else expand_home(path).absolute()

    @field_validator("index_url")
    @classmethod
    def check_index_url(cls, url: str) -> str:
        """Return the URL of a Milvus unchanged, or a Milvus Lite file's path made absolute. Raise otherwise.

        Raises:
            ValueError: for anything else.
        """
        try:
            parts = urlsplit(url)
            is_http = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port beyond 65,535, a bracket left open
            is_http = False
        if url and not is_http and ("://" in url or not re.search(r"[^/]\.db$", url)):
            raise ValueError("it must be http://HOST:19530[/DATABASE] of a Milvus, or FILE.db for Milvus Lite")
        return url if "://" in url or not url else str(expand_home(url).absolute())

    @field_validator("root_path")
    @classmethod
    def check_root_path(cls, path: str) -> str:
        """Return the path prefix without a slash at its end. Raise if it is not a valid path.

        Raises:
            ValueError: if it is not a path that begins with a slash.
        """
        path = path.rstrip("/")
        if path and not ROOT_PATH.fullmatch(path):
            raise ValueError(f"{path} is not a path: write /lathe, of letters, digits and -._~ between slashes")
        return path

    @field_validator("redis_url")
    @classmethod
    def check_redis_url(cls, url: str) -> str:
        """Return the URL unchanged if a Redis client accepts it. Raise otherwise.

        Raises:
            ValueError: if not; the message does not quote the URL's password.
        """
        try:
            parts = urlsplit(url)
            address = {"redis": parts.hostname, "rediss": parts.hostname, "unix": parts.path}.get(parts.scheme)
            numbered = parts.scheme == "unix" or re.fullmatch(r"/?\d*", parts.path) is not None
            valid = bool(address) and numbered and parts.port != 0
            valid = valid and all(name == "db" or name.startswith("ssl_") for name, _ in parse_qsl(parts.query))
        except ValueError:  # a port that is not a number
            valid = False
        if url and not valid:
            raise ValueError("it must be redis://[[user]:password@]host[:port][/database], rediss://… or unix://PATH")
        return url

    @field_validator("api_keys", "admin_keys", "read_only_keys", "cors_origins", "allowed_hosts", mode="before")
    @classmethod
    def split_commas(cls, value: Any) -> Any:
        """Split a comma-separated string into a tuple of texts. Other values are returned unchanged.

        Raises:
            ValueError: if the string holds only commas and spaces.
        """
        if not isinstance(value, str):
            return value
        parts = tuple(part.strip() for part in value.split(",") if part.strip())
        if value and not parts:
            raise ValueError("it holds only commas and spaces: leave it unset, or name something")
        return parts

    @field_validator("allowed_hosts")
    @classmethod
    def check_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        """Return the host names in lower case. Raise for one that no `Host` header can name.

        Raises:
            ValueError: for one that no `Host` header can name.
        """
        hosts = tuple(host.lower().removesuffix(".") for host in hosts)
        for host in hosts:
            if not HOST.fullmatch(host):
                raise ValueError(f"{host} is not a host: write lathe.example.org, without scheme, port or path, or *")
        return hosts

    @field_validator("api_keys_file", "admin_keys_file", "read_only_keys_file", mode="before")
    @classmethod
    def read_key_file(cls, value: Any) -> Any:
        """Return the key file at a path, which is read only once, as it may be a pipe, or another value unchanged."""
        return KeyFile.read(expand_home(value).absolute()) if isinstance(value, str | Path) else value

    @field_validator("api_keys", "admin_keys", "read_only_keys")
    @classmethod
    def join_key_file(cls, keys: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        """Return the keys of the environment variable, followed by the keys of the key file that goes with it.

        Raises:
            ValueError: if a read-only key is a key of another kind too.
        """
        # pydantic validates fields in the order of the class, in which the files come before the keys.
        file = info.data.get(f"{info.field_name}_file")
        keys = (*keys, *file.keys) if file else keys
        writing = {*info.data.get("api_keys", ()), *info.data.get("admin_keys", ())}
        if info.field_name == "read_only_keys" and writing & set(keys):
            raise ValueError("a read-only key is an API key or an admin key too: choose another")
        return keys

    @field_validator("cors_origins")
    @classmethod
    def check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        """Return the origins of web pages in lower case. Raise for one that browsers do not write so.

        Raises:
            ValueError: for one that is not written as browsers write it.
        """
        origins = tuple(origin.lower() for origin in origins)
        for origin in origins:
            if origins != ("*",) and not ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin} is not an origin: write https://app.example.org, without a path, or * alone"
                )
        return origins

    @field_validator("log_level", mode="before")
    @classmethod
    def lower_level(cls, value: Any) -> Any:
        """Return the log level in lower case. A value that is not a string is returned unchanged."""
        return value.lower() if isinstance(value, str) else value

    @field_validator("encoders", mode="before")
    @classmethod
    def read_encoders(cls, value: Any) -> Any:
        """Return the setting of encoders as a list, parsed from a JSON list or from the file at a path.

        A value that is not a string is returned unchanged.
        """
        if not isinstance(value, str) or not value.strip():
            return value or ()
        text = value if value.lstrip().startswith("[") else read_plain_file(expand_home(value)).decode()
        return orjson.loads(text)

    @model_validator(mode="after")
    def check_combination(self) -> "Settings":
        """Return the settings unchanged if they fit together. Raise otherwise.

        Raises:
            ValueError: if the memory for bodies is less than the largest body allowed, two encoders share a name, or
                the first one, the default, is not served from the start.
        """
        if self.body_memory < self.max_body_bytes:
            raise ValueError(
                f"LATHE_BODY_MEMORY_BYTES is {self.body_memory}; it must be at least LATHE_MAX_BODY_BYTES, "
                f"{self.max_body_bytes}"
            )
        names = [encoder.name for encoder in self.encoders]
        if len(set(names)) < len(names):
            raise ValueError(f"two encoders share a name: {', '.join(names)}")
        if self.encoders and not self.encoders[0].load:
            raise ValueError(
                f"the first encoder, {names[0]}, is the default and must be served from the start: load: true"
            )
        return self

    @cached_property
    def hosted(self) -> tuple[EncoderSettings, ...]:
        """Settings of all encoders that the server may host, the default first.

        Encoders added to the state folder are included.

        Raises:
            ValueError: if the encoders added to the state folder cannot be read.
        """
        named = self.encoders or (DEFAULT,)
        names = {encoder.name for encoder in named}
        return (*named, *(added for added in AddedEncoders(self.home).read() if added.name not in names))

    @cached_property
    def specs(self) -> tuple[EncoderSpec, ...]:
        """Specs of the hosted encoders, as the training package loads them, then of live trained encoders."""
        return (*(encoder.build_spec(self.dtype) for encoder in self.hosted), *self.trained.list_live(self.dtype))

    @property
    def trained(self) -> TrainedSpecs:
        """Specs of the trained encoders of the state folder, or of the local replica of those in Redis."""
        home = Home(self.home)
        return TrainedSpecs(home.shared_trained if self.redis_url else home.trained)

    @property
    def loaded_specs(self) -> tuple[EncoderSpec, ...]:
        """Specs of the encoders served from startup."""
        return tuple(encoder.build_spec(self.dtype) for encoder in self.hosted if encoder.load)

    def find_encoder_spec(self, name: str) -> EncoderSpec | None:
        """Return the spec of an encoder by its name, or None if there is none.

        Encoders added after these settings were read are found. Of a trained encoder, `NAME` is the live version and
        `NAME@V` a version.

        Raises:
            ValueError: if the encoders added to the state folder cannot be read.
        """
        encoder = self._find_encoder(name)
        return encoder.build_spec(self.dtype) if encoder else self.trained.find(name, self.dtype)

    def find_idle_seconds(self, name: str) -> float:
        """Return the seconds without a request after which an encoder is unloaded, or 0 if it never is.

        Raises:
            ValueError: if the encoders added to the state folder cannot be read.
        """
        encoder = self._find_encoder(name)
        return self.idle_seconds if encoder is None or encoder.idle_seconds is None else encoder.idle_seconds

    def _find_encoder(self, name: str) -> EncoderSettings | None:
        """Return an encoder's settings, including encoders added to the state folder since these settings were read."""
        known = [*(self.encoders or (DEFAULT,)), *AddedEncoders(self.home).read()]
        return next((encoder for encoder in known if encoder.name == name), None)

    @property
    def on_gpu(self) -> bool:
        """Whether encoders run on a device other than the CPU."""
        return (self.device or best_device()) != "cpu"

    @property
    def worker_processes(self) -> int:
        """Number of worker processes per encoder.

        Two of one thread each encode more than one of two threads.
        """
        return self.workers or (1 if self.on_gpu else min(self.threads, MAX_CPU_WORKERS))

    @property
    def worker_threads(self) -> int:
        """Number of threads of each worker process of an encoder."""
        return max(1, self.threads // self.worker_processes)

    @property
    def vector_stores(self) -> VectorStores:
        """Where commands and jobs store the vectors of texts."""
        return VectorStores(
            upstream=StoreSettings(self.home / "upstream", self.upstream_bytes),
            encoded=StoreSettings(self.home / "encoded", self.encoded_bytes),
        )

    @property
    def graph_threads(self) -> int:
        """CPU threads that add rows to the graphs of indexes: half of the server's, which has requests to answer."""
        return max(1, self.threads // 2)

    @property
    def body_memory(self) -> int:
        """Maximum bytes that the bodies of all requests may take together."""
        return self.body_memory_bytes or 8 * self.max_body_bytes

    @property
    def parse_memory(self) -> int:
        """Maximum bytes that bodies may take together while they are parsed. A body that takes more is parsed alone."""
        return PARSED_TIMES * self.max_body_bytes

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server's address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def admin_key_only(self) -> bool:
        """Whether every request needs an admin key: other machines can reach the server and no API keys are set."""
        return not (self.loopback or self.api_keys or self.read_only_keys or self.public_without_keys)

    @property
    def needs_key(self) -> bool:
        """Whether a request that uses the service needs a key."""
        return bool(self.api_keys or self.read_only_keys) or self.admin_key_only

    def describe_access(self) -> str:
        """Return a sentence on who may use the server."""
        if self.admin_key_only:
            key = "a key of LATHE_ADMIN_KEYS" if self.admin_keys else f"the admin key in {Home(self.home).admin_key}"
            return (
                f"other machines can reach {self.host} and no API keys are set, so every request needs {key}; "
                "set LATHE_API_KEYS for clients"
            )
        if self.api_keys or self.read_only_keys:
            return "clients need an API key"
        users = "programs on this machine" if self.loopback else f"all machines that reach {self.host}"
        return f"{users} may use the server without a key"

    def to_environment(self) -> dict[str, str]:
        """Return the environment variables from which another process reads these settings, without keys."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        variables = {f"{PREFIX}{name.upper()}": _format_variable(value) for name, value in fields.items()}
        return {name: text for name, text in variables.items() if name not in KEY_VARIABLES}

    def require_redis_extra(self) -> None:
        """Raise `ValueError` if a Redis URL is set and the package `redis` is not installed."""
        if self.redis_url and find_spec("redis") is None:
            raise ValueError("LATHE_REDIS_URL needs the extra `redis`: pip install 'lathe-service[redis]'")


PREFIX = "LATHE_"
"""Beginning of the names of all environment variables of Lathe."""
KNOWN_VARIABLES = {"POSTGRES_URL", "RAY_ADDRESS", *(name.upper() for name in Settings.model_fields)}
"""Names of the variables after the prefix: two are of commands' options, the others are settings of a server."""


def _format_variable(value: Any) -> str:
    """Return a setting as the text of its environment variable, which is empty, and counts as unset, for None."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case (EncoderSettings(), *_):
            return orjson.dumps([encoder.model_dump(mode="json") for encoder in value]).decode()
        case tuple():
            return ",".join(value)
        case _:
            return str(value)


def list_unknown_variables() -> list[str]:
    """Return the environment variables `LATHE_…` that nothing reads, sorted, such as those Kubernetes sets."""
    ours = {name.removeprefix(PREFIX) for name in os.environ if name.startswith(PREFIX)}
    return sorted(PREFIX + name for name in ours - KNOWN_VARIABLES)


def _refuse_misspelt_variables() -> None:
    for name in list_unknown_variables():
        if similar := find_similar(name.removeprefix(PREFIX), KNOWN_VARIABLES):
            raise ValueError(f"{name} is not read by anything; did you mean {PREFIX}{similar}?")


def read_settings(**overrides: Any) -> Settings:
    """Read the settings from environment variables, validate them, and return them.

    Args:
        **overrides: values of settings; those that are not None override variables.

    Raises:
        ValueError: if settings are invalid, with each of them in the message, or a variable seems to be misspelt.
    """
    _refuse_misspelt_variables()
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
