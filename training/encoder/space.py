"""Where vectors are comparable."""

import hashlib
import json


def space_id(encoder_fingerprint: str | None, chain: str | None, chain_digest: str | None, dimensions: int) -> str:
    """An id that two vectors share only if comparing them makes sense.

    Args:
        encoder_fingerprint: covers model, revision, pooling, layer, maximal length and prompts;
            None for vectors that came from elsewhere.
        chain: `name@version`, None for raw vectors.
        chain_digest: SHA-256 of the chain's tensors.
        dimensions: the size served.

    dtype and the prompt chosen per call are not in it: such vectors are meant to be compared.
    """
    parts = [encoder_fingerprint, chain, chain_digest, dimensions]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]
