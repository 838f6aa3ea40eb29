"""Authorization by keys, compared in constant time.

kind of key     allows
read-only       embed, reduce, search, read what is served
API             the same, and write and delete items of indexes
admin           everything
"""

import hmac
from dataclasses import dataclass

from starlette.requests import Request

from lathe.service.errors import ForbiddenError, UnauthorizedError, UnavailableError

ADMIN_KEY_MISSING = (
    "the admin key is missing or unknown: send it as Authorization: Bearer KEY (see $LATHE_HOME/admin.key)"
)


@dataclass(frozen=True)
class Keys:
    """Keys of a server.

    Attributes:
        api: keys that allow use.
        admin: keys that allow administration and use.
        needed: whether use needs a key, see `Settings.needs_key`.
        read_only: keys that allow use without writing.
    """

    api: tuple[str, ...]
    admin: tuple[str, ...]
    needed: bool
    read_only: tuple[str, ...] = ()

    def require_use(self, request: Request) -> None:
        """Raise `UnauthorizedError` unless the request has a key of any kind, or the server needs no key."""
        if not self.needed or _equals_any(_read_token(request), (*self.read_only, *self.api, *self.admin)):
            return
        if self.api or self.read_only:
            raise UnauthorizedError("the API key is missing or unknown: send it as Authorization: Bearer KEY")
        raise UnauthorizedError(f"{ADMIN_KEY_MISSING}; this server has no API keys, so every request needs it")

    def require_write(self, request: Request) -> None:
        """Raise unless the request may write and delete items of indexes.

        It may with an API or admin key, or if the server needs no key.

        Raises:
            ForbiddenError: if the key is a read-only one.
            UnauthorizedError: if there is no key, or the key is unknown.
        """
        self.require_use(request)
        if self.needed and _equals_any(_read_token(request), self.read_only):
            raise ForbiddenError("this needs an API key; a read-only key searches and reads")

    def require_admin(self, request: Request) -> None:
        """Raise unless the request has an admin key in its `Authorization` header.

        Raises:
            UnavailableError: if the server has no admin key.
            ForbiddenError: if the key is an API key or a read-only key.
            UnauthorizedError: if there is no key, or the key is unknown.
        """
        if not self.admin:
            raise UnavailableError(
                "this server has no admin key: the state folder cannot be written", code="state_unwritable"
            )
        token = _read_token(request)
        if _equals_any(token, self.admin):
            return
        if _equals_any(token, (*self.api, *self.read_only)):
            raise ForbiddenError("this needs an admin key; an API key allows use only")
        raise UnauthorizedError(ADMIN_KEY_MISSING)


def _read_token(request: Request) -> bytes:
    """Return the key in the `Authorization` header as bytes, without a leading `Bearer`, or b"" without the header.

    `Bearer` may be in any case of letters. A header of another scheme is returned whole.
    """
    header = request.headers.get("authorization", "").encode("latin-1").strip()
    scheme, _, token = header.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" and token else header


def _equals_any(token: bytes, keys: tuple[str, ...]) -> bool:
    """Return whether the token equals one of the keys, comparing all keys in constant time.

    The keys are compared in UTF-8. The result is False if the token is empty.
    """
    is_equal = False
    for key in keys:
        # No early return: the time must not tell which key is nearly right.
        is_equal |= hmac.compare_digest(token, key.encode("utf-8", "surrogateescape"))
    return is_equal and bool(token)
