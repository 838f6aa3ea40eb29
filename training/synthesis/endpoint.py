"""Where requests go, and the key that goes with them."""

import re
from dataclasses import dataclass, field
from os import environ
from urllib.parse import urlsplit

from training.errors import JobError
from training.synthesis.job import EndpointSettings

VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")


@dataclass(frozen=True)
class Endpoint:
    """Where requests go, and the key, which is never shown."""

    url: str
    host: str
    key: str | None = field(repr=False)


def open_endpoint(settings: EndpointSettings) -> Endpoint:
    """The endpoint of a job, with its key.

    Raises:
        JobError: for an address that is none, or a key that is not there.
    """
    url = settings.base_url.rstrip("/")
    try:
        parts = urlsplit(url)
        host, user = parts.hostname, parts.username
        port = f":{parts.port}" if parts.port else ""
    except ValueError as error:
        raise JobError("endpoint.base_url is no address such as http://localhost:8000/v1") from error
    if user is not None:
        raise JobError("endpoint.base_url holds a name or password; put the key in a variable, see key_variable")
    if parts.query or parts.fragment:
        raise JobError("endpoint.base_url must end before any ? or #")
    if parts.scheme not in ("http", "https") or not host:
        raise JobError(f"endpoint.base_url must be like http://localhost:8000/v1, not {url!r}")
    if parts.path.endswith("/completions"):
        raise JobError(f"endpoint.base_url is what /chat/completions is added to; leave that off {url!r}")
    return Endpoint(url, f"{host}{port}", read_key(settings.key_variable))


def read_key(variable: str | None) -> str | None:
    """The key in an environment variable; None where none is wanted.

    Raises:
        JobError: if there is none. What was written is not repeated unless it looks like a name: it may be the key.
    """
    if variable is None:
        return None
    if not VARIABLE.fullmatch(variable):
        raise JobError("endpoint.key_variable takes the name of an environment variable, such as LLM_KEY, not the key")
    key = environ.get(variable, "").strip()
    if not key:
        raise JobError(f"the environment variable {variable}, which endpoint.key_variable names, is not set")
    if not key.isascii() or not key.isprintable():
        raise JobError(f"the key in {variable} has characters that no key has")
    return key
