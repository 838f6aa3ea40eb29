"""Encoding of texts by the encoder that an index has its vectors from."""

import numpy as np
from numpy.typing import NDArray

from lathe.service.encoders.embedder import Embedder, EmbedRequest
from lathe.service.encoders.engine.engine import Engine
from lathe.service.encoders.engine.work import EncodeOptions
from lathe.service.errors import ConflictError, WrongShapeError
from lathe.service.index.spec import IndexSpec
from lathe.training.encoder.text_encoder import compute_space_id


def find_index_engine(embedder: Embedder, spec: IndexSpec) -> Engine:
    """Return the engine of an index's encoder, after checking that the encoder's vectors still belong to the index.

    Raises:
        WrongShapeError: if the index has no encoder and takes vectors only.
        ConflictError: if the encoder is not served, or its vectors now belong to another space; the message names both
            spaces.
        UnavailableError: while the encoder is not ready.
    """
    if spec.encoder is None:
        raise WrongShapeError("this index has no encoder: send vectors instead of texts", param="texts")
    engine = embedder.engines.get(spec.encoder)
    if engine is None:
        raise ConflictError(
            f"this index holds vectors of the encoder {spec.encoder}, which is not served here (served: "
            f"{', '.join(embedder.engines)}): send vectors, or add it",
            param="texts",
            code="space_mismatch",
        )
    encoder = engine.get_ready_info()
    if encoder.fingerprint != spec.encoder_fingerprint:
        current_space = compute_space_id(encoder.fingerprint, None, None, encoder.dimensions)
        raise ConflictError(
            f"{spec.encoder} is no longer the encoder that this index was created with: its vectors are in the space "
            f"{current_space}, the index's to {spec.raw_space_id}; reindex with an encoder, or restore the old one",
            param="texts",
            code="space_mismatch",
        )
    return engine


def encode_for_index(embedder: Embedder, spec: IndexSpec, texts: list[str]) -> NDArray[np.float32]:
    """Encode texts as documents with an index's encoder into vectors `(n, d)`, before any chain of transforms.

    Blocks until they are encoded.

    Raises:
        ServiceError: if the index has no encoder, or the encoder is not served, is not ready or has changed.
    """
    engine = find_index_engine(embedder, spec)
    options = EncodeOptions(engine.get_ready_info().find_side_prompt("document"))
    return embedder.begin(EmbedRequest(texts, engine, options)).wait_for_answer().vectors
