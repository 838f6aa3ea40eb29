"""Who may do what: keys for use, keys for administration, compared in constant time."""

import hmac

from starlette.requests import Request

from service.errors import ForbiddenError, UnauthorizedError, UnavailableError


class Keys:
    """The keys of a server.

    Attributes:
        api: for use; none on a server that is free to use.
        admin: for administration, and use.
    """

    def __init__(self, api: tuple[str, ...], admin: tuple[str, ...]) -> None:
        self.api = api
        self.admin = admin

    def require_use(self, request: Request) -> None:
        """Raise `UnauthorizedError` unless the request may use the service."""
        if self.api and not matches(token(request), (*self.api, *self.admin)):
            raise UnauthorizedError("this server wants an API key: Authorization: Bearer KEY")

    def require_admin(self, request: Request) -> None:
        """Raise unless the request may administrate.

        Raises:
            UnavailableError: if there is no admin key at all.
            ForbiddenError: for a key that allows use only.
            UnauthorizedError: for no key or an unknown one.
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
    """The token of the Authorization header, with or without the word Bearer, byte for byte as it was sent."""
    header = request.headers.get("authorization", "").encode("latin-1").strip()
    scheme, _, rest = header.partition(b" ")
    return rest.strip() if scheme.lower() == b"bearer" and rest else header


def matches(given: bytes, keys: tuple[str, ...]) -> bool:
    """Whether the token is one of the keys, in UTF-8; every key is compared, in constant time."""
    found = False
    for key in keys:
        found |= hmac.compare_digest(given, key.encode("utf-8", "surrogateescape"))
    return found and bool(given)
