"""SHA-256 digests of JSON-serializable values, used as cache keys."""

import hashlib
import json


def digest(*parts: object) -> str:
    """Return the SHA-256 of JSON-serializable values, serialized as one JSON list, as 64 hexadecimal digits."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
