"""Opening of an encoder by its spec: a model is loaded, or an embeddings API is asked."""

import atexit

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec, StoreSettings
from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.encoder.upstream.encoder import UpstreamEncoder


def open_encoder(spec: EncoderSpec, device: str | None = None, store: StoreSettings | None = None) -> TextEncoder:
    """Load the spec's model, or connect to its embeddings API until this process exits.

    Args:
        spec: spec of the encoder.
        device: torch device of a model; None for the default.
        store: where the vectors of an API are stored; None stores none.

    Raises:
        EncoderError: if the model cannot be loaded, or there is no key for the API.
        UpstreamError: if the API does not answer as it should.
    """
    if spec.upstream is None:
        return Encoder(spec, device)
    encoder = UpstreamEncoder(spec, store)
    try:
        encoder.identify()
    except BaseException:
        encoder.close()
        raise
    atexit.register(encoder.close)
    return encoder
