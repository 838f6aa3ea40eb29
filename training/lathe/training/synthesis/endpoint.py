"""Address of the endpoint, and the key for it."""

from dataclasses import dataclass, field

from lathe.training.endpoint import read_key, split_address
from lathe.training.errors import JobError
from lathe.training.synthesis.job import EndpointSettings


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
        parts = split_address(url, "endpoint.base_url", "http://localhost:8000/v1")
        key = None if settings.key_variable is None else read_key(settings.key_variable, "endpoint.key_variable")
    except ValueError as error:
        raise JobError(str(error)) from error
    if parts.path.endswith("/completions"):
        raise JobError(f"endpoint.base_url is what /chat/completions is added to; leave that off {url!r}")
    return Endpoint(url, f"{parts.hostname}{f':{parts.port}' if parts.port else ''}", key)
