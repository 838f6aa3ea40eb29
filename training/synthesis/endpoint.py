"""Address of the endpoint, and the key for it."""

import re
from dataclasses import dataclass, field
from os import environ
from urllib.parse import urlsplit

from training.errors import JobError
from training.synthesis.job import EndpointSettings

VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
"""Name of an environment variable, in capitals, so that a key written in its place is recognized."""


@dataclass(frozen=True)
class Endpoint:
    """Address and key of an endpoint; the key is left out of the repr.

    Attributes:
        url: address that `/chat/completions` is appended to.
        host: host, with the port if there is one.
        key: API key; None for an endpoint without keys.
    """

    url: str
    host: str
    key: str | None = field(repr=False)


def open_endpoint(settings: EndpointSettings) -> Endpoint:
    """Check the endpoint's settings, read its key from the environment, and return the endpoint; nothing is connected.

    Raises:
        JobError: if the address is not valid, or there is no key.
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
    return Endpoint(url, f"{host}{port}", _read_key(settings.key_variable))


def _read_key(variable: str | None) -> str | None:
    """Read the key from an environment variable; return None if no variable is named.

    Raises:
        JobError: if the variable is not set, or holds characters that no key has. A setting that is not the name of a
            variable is not repeated in the message, since it may be the key.
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
