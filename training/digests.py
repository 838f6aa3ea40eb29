"""SHA-256 of values."""

import hashlib
import json


def digest(*parts: object) -> str:
    """Return the SHA-256 of JSON-serializable parts, in hexadecimal."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
