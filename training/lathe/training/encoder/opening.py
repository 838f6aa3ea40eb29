"""Opening of an encoder by its spec: a model is loaded, or an embeddings API is asked."""

import atexit
import logging

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec, VectorStores
from lathe.training.encoder.stored_encoder import StoredEncoder
from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.encoder.upstream.encoder import UpstreamEncoder
from lathe.training.encoder.vector_database import VectorDatabase
from lathe.training.errors import UpstreamError

log = logging.getLogger(__name__)


def open_encoder(spec: EncoderSpec, device: str | None = None, stores: VectorStores | None = None) -> TextEncoder:
    """Return an encoder for a spec, either with its model loaded or connected to its embeddings API. A connection is
    closed when this process exits.

    Args:
        spec: spec of the encoder.
        device: torch device of a model; None for the default.
        stores: where vectors are stored, and read instead of being computed or asked for again; None stores none.

    Raises:
        EncoderError: if the model cannot be loaded, or there is no key for the API.
        UpstreamError: if the API does not answer as it should.
    """
    if spec.upstream is None:
        return _open_model(spec, device, stores)
    encoder = UpstreamEncoder(spec, None if stores is None else stores.upstream)
    try:
        encoder.identify()
    except BaseException:
        encoder.close()
        raise
    atexit.register(encoder.close)
    return encoder


def _open_model(spec: EncoderSpec, device: str | None, stores: VectorStores | None) -> TextEncoder:
    """Load a model, and return it as an encoder that stores its vectors in a database. If none are to be stored or the
    database cannot be opened, the encoder is returned without it.
    """
    encoder = Encoder(spec, device)
    if stores is None or not stores.encoded.max_bytes:
        return encoder
    try:
        database = VectorDatabase(stores.encoded)
    except (UpstreamError, OSError) as error:
        log.warning("vectors of %s are not stored: %s", spec.name, error)
        return encoder
    atexit.register(database.close)
    return StoredEncoder(encoder, database)
