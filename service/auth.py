"""Authorization: keys for use and keys for administration, compared in constant time."""

import hmac

from starlette.requests import Request

from service.errors import ForbiddenError, UnauthorizedError, UnavailableError


class Keys:
    """API keys and admin keys of a server.

    Attributes:
        api: keys that allow use; empty if the server needs no key.
        admin: keys that allow administration and use.
    """

    def __init__(self, api: tuple[str, ...], admin: tuple[str, ...]) -> None:
        self.api = api
        self.admin = admin

    def require_use(self, request: Request) -> None:
        """Raise `UnauthorizedError` unless the request has an API or admin key, or the server needs no key."""
        if self.api and not matches(token(request), (*self.api, *self.admin)):
            raise UnauthorizedError("this server wants an API key: Authorization: Bearer KEY")

    def require_admin(self, request: Request) -> None:
        """Raise unless the request has an admin key.

        Raises:
            UnavailableError: if the server has no admin key.
            ForbiddenError: if the key is an API key, which allows use only.
            UnauthorizedError: if there is no key, or the key is unknown.
        """
        if not self.admin:
            raise UnavailableError("there is no admin key: the state folder cannot be written", code="state_unwritable")
        given = token(request)
        if matches(given, self.admin):
            return
        if matches(given, self.api):
            raise ForbiddenError("this needs an admin key; the one given allows use only")
        raise UnauthorizedError("this needs the admin key: Authorization: Bearer KEY (see $LATHE_HOME/admin.key)")


def token(request: Request) -> bytes:
    """Return the raw bytes of the `Authorization` header without a leading `Bearer`; empty if there is no header."""
    header = request.headers.get("authorization", "").encode("latin-1").strip()
    scheme, _, rest = header.partition(b" ")
    return rest.strip() if scheme.lower() == b"bearer" and rest else header


def matches(given: bytes, keys: tuple[str, ...]) -> bool:
    """Return whether the token equals one of the keys in UTF-8, comparing all keys in constant time; False if empty."""
    found = False
    for key in keys:
        found |= hmac.compare_digest(given, key.encode("utf-8", "surrogateescape"))
    return found and bool(given)
