"""How both clients reach the server: address, key, timeouts and retries."""

import re
from dataclasses import dataclass, field
from typing import Any

import httpx2

from lathe_client.batches import DEFAULT_BATCH_SIZE
from lathe_client.calls import Call
from lathe_client.retries import DEFAULT_RETRIES, Retries

DEFAULT_URL = "http://localhost:8080"


@dataclass(frozen=True)
class Connection:
    """Address of a server, and how it is called: key, timeouts, retries and batch size.

    Attributes:
        url: address, such as `http://localhost:8080`; a path below it is kept.
        api_key: key of the server; not shown by `repr`.
        timeout: seconds to wait for a connection, and between two parts of an answer.
        retries: how often, and after which delays, a call is retried.
        batch_size: maximum number of texts in a request.

    Raises:
        ValueError: for an address that is not one of HTTP, or that holds a user or a password; for a key that cannot be
            sent in a header, without quoting it; for a batch size less than 1.
    """

    url: str
    api_key: str | None = field(default=None, repr=False)
    timeout: float = 60.0
    retries: Retries = DEFAULT_RETRIES
    batch_size: int = DEFAULT_BATCH_SIZE

    def __post_init__(self) -> None:
        """Raise `ValueError` for an address, a key or a batch size that cannot be used."""
        try:
            address = httpx2.URL(self.url)
        except httpx2.InvalidURL as error:
            raise ValueError(f"the address is {self.url!r}, which is not a URL: {error}") from None
        if address.userinfo:
            raise ValueError("the address holds a user or a password; give the server's key as api_key")
        if address.scheme not in ("http", "https") or not address.host:
            raise ValueError(f"the address is {self.url!r}; it must begin with http:// or https:// and name a host")
        if self.api_key is not None and not re.fullmatch(r"[!-~]+", self.api_key):
            # An error of the connection would quote the header.
            raise ValueError("api_key is empty, or holds a space or a character that is not printable ASCII")
        if self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size}; it must be at least 1")

    def build_http_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for `httpx2.Client` and `httpx2.AsyncClient`."""
        key = {} if self.api_key is None else {"authorization": f"Bearer {self.api_key}"}
        return {"base_url": self.url, "headers": key, "timeout": self.timeout}


def build_request(http: httpx2.Client | httpx2.AsyncClient, call: Call[Any]) -> httpx2.Request:
    """Return the HTTP request of a call."""
    return http.build_request(call.method, call.path, content=call.body, headers=call.headers, params=call.query)
