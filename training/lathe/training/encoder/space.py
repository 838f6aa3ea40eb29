"""Ids of vector spaces: vectors may be compared only if their space ids are equal."""

from functools import lru_cache

from lathe.training.digests import digest


@lru_cache(maxsize=1024)  # asked for each request
def compute_space_id(
    encoder_fingerprint: str | None, chain: str | None, chain_digest: str | None, dimensions: int
) -> str:
    """Return an id of a vector space, equal only for vectors that may be compared.

    The id is 24 hexadecimal digits.

    Vectors of different dtypes or prompts share an id, because such vectors are meant to be compared.

    Args:
        encoder_fingerprint: covers weights, pooling, layer, maximum length and prompts; None for vectors without an
            encoder.
        chain: `name@version`; None for raw vectors.
        chain_digest: SHA-256 of the chain's tensors; None for raw vectors.
        dimensions: dimensions of the vectors served.
    """
    return digest(encoder_fingerprint, chain, chain_digest, dimensions)[:24]
