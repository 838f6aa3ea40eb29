"""Address and key of an HTTP endpoint, as users configure them."""

import ipaddress
import re
from os import environ
from urllib.parse import SplitResult, urlsplit

VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
"""Pattern of the name of an environment variable, in capitals, so that a key written in its place is recognized."""


def split_address(url: str, setting: str, example: str) -> SplitResult:
    """Parse a URL as the address of an HTTP endpoint, and raise if it cannot be one. The host is not looked up.

    Args:
        url: the address, without query and credentials.
        setting: name of the setting, for messages.
        example: an address of the right form, for messages.

    Returns:
        The parts of the URL.

    Raises:
        ValueError: if the URL is not http or https with a host, or has a query, fragment, name or password. A name or
            password is not repeated in the message.
    """
    try:
        parts = urlsplit(url)
        host, user, port = parts.hostname, parts.username, parts.port
    except ValueError as error:
        raise ValueError(f"{setting} is not an address such as {example}") from error

    if user is not None:
        raise ValueError(f"{setting} holds a name or password; put the key in an environment variable")
    if parts.query or parts.fragment:
        raise ValueError(f"{setting} must end before any ? or #")
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise ValueError(f"{setting} must be like {example}, not {url!r}")

    return parts


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine: `localhost`, or a loopback address.

    No name is looked up.
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_variable_name(variable: str, setting: str) -> str:
    """Raise `ValueError` if a setting does not hold the name of an environment variable, else return the name.

    The message does not repeat the value, since it may be the key.
    """
    if not VARIABLE.fullmatch(variable):
        raise ValueError(f"{setting} takes the name of an environment variable, such as LLM_KEY, not the key")
    return variable


def read_key(variable: str, setting: str) -> str:
    """Read an API key from the environment variable that a setting names, stripped. A missing or non-ASCII key raises.

    Raises:
        ValueError: if `variable` is not the name of a variable, the variable is not set, or the key has characters that
            are not printable ASCII; the key is not quoted.
    """
    key = environ.get(check_variable_name(variable, setting), "").strip()
    if not key:
        raise ValueError(f"the environment variable {variable}, which {setting} names, is not set: set it to the key")
    if not key.isascii() or not key.isprintable():
        raise ValueError(f"the key in {variable} has characters that are not printable ASCII: copy the key again")
    return key
