"""Opening of an encoder by its spec, as a loaded model or as a client of an embeddings API.

The vectors of an encoder may be stored: a text that was encoded before, by any command or job, is not encoded again.
"""

import atexit
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec, LongText, Side, VectorStores
from lathe.training.encoder.text_encoder import NO_PROMPT, Encoding, TextEncoder, hash_texts
from lathe.training.encoder.upstream.encoder import UpstreamEncoder
from lathe.training.encoder.vector_database import StoredVector, VectorDatabase
from lathe.training.errors import EncoderError, UpstreamError

log = logging.getLogger(__name__)


def open_encoder(spec: EncoderSpec, device: str | None = None, stores: VectorStores | None = None) -> TextEncoder:
    """Open the encoder of a spec: load the model, or connect to the spec's embeddings API and identify its model.

    Connections and stores are closed when this process exits.

    Args:
        spec: spec of the encoder.
        device: torch device of a model; None for the default.
        stores: databases in which vectors are stored and looked up before a text is encoded; None stores no vectors.

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
    """Load a model as an encoder that stores vectors in a database, or as a plain encoder if there is no database.

    If the store has a maximum of 0 bytes, the plain encoder is returned. If the database cannot be opened, a warning is
    logged and the plain encoder is returned.
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


STORE_TEXTS = 1024
"""Number of texts that are encoded between two writes."""


class StoredEncoder(TextEncoder):
    """Encoder of a loaded model that stores its vectors in a database and reads them again.

    If the database cannot be read or written, all further texts are encoded without it, and a warning is logged once.

    Args:
        encoder: the model.
        database: vectors by key.

    Attributes:
        dimensions: dimensions of the vectors.
        max_length: tokens that the model reads of a text.
    """

    def __init__(self, encoder: Encoder, database: VectorDatabase) -> None:
        self.encoder = encoder
        self.database: VectorDatabase | None = database
        self.spec = encoder.spec
        self.fingerprint = encoder.fingerprint
        self.prompts = encoder.prompts
        self.routed = encoder.routed
        self.default_prompt_name = encoder.default_prompt_name
        self.dimensions = encoder.dimensions
        self.device = encoder.device
        self.max_length = encoder.max_length

    def describe(self) -> dict[str, Any]:
        """Return the settings of the model as a dict, as `Encoder.describe` does."""
        return self.encoder.describe()

    def encode(
        self,
        texts: Sequence[str],
        prompt_name: str | None = None,
        long_text: LongText | None = None,
        truncation_side: Side = "right",
        normalize: bool = True,
        on_batch: Callable[[int], None] | None = None,
    ) -> Encoding:
        """Encode texts to vectors `(n, d)` in the order given. Stored vectors are read, and new vectors are stored.

        Vectors in the database are read, others computed and stored. Texts that repeat are encoded once. In the result,
        `padded` counts only tokens of the texts that were encoded now, and `cut` is None.

        Raises:
            EncoderError: as `lathe.training.encoder.encoder.Encoder.encode`.
        """
        if isinstance(texts, str):
            return self.encoder.encode(texts)  # which raises
        self._require_unicode(texts)
        name = self.default_prompt_name if prompt_name is None else prompt_name
        options: dict[str, Any] = {
            "prompt_name": NO_PROMPT if name is None else name,
            "long_text": long_text or self.spec.long_text,
            "truncation_side": truncation_side,
            "normalize": normalize,
        }
        # By key, not by text, so that texts that repeat are encoded once.
        keys = self._compute_keys(texts, options)
        stored = self._read(keys)
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in stored}
        missing_keys = list(missing)
        padded = 0
        for start in range(0, len(missing), STORE_TEXTS):
            block = missing_keys[start : start + STORE_TEXTS]
            done = len(texts) - len(missing) + start
            report = None if on_batch is None else (lambda count, done=done: on_batch(done + count))
            try:
                encoding = self.encoder.encode([missing[key] for key in block], on_batch=report, **options)
            except EncoderError:
                if len(block) < len(texts):  # the message counts the texts of the block, not those of the caller
                    self.encoder.encode(texts, **options)
                raise
            padded += encoding.padded
            stored |= self._write(block, encoding)

        vectors = np.empty((len(texts), self.dimensions), np.float32)
        tokens = np.empty(len(texts), np.int64)
        for row, key in enumerate(keys):
            vectors[row], tokens[row] = stored[key].vector, stored[key].tokens
        if on_batch is not None:
            on_batch(len(texts))
        return Encoding(vectors, tokens, padded)

    def _compute_keys(self, texts: Sequence[str], options: Mapping[str, Any]) -> list[bytes]:
        """Compute each text's key in the database: a digest of encoder, dtype, options, prompt and text."""
        prompt = self.prompt_key(options["prompt_name"])
        rest = {name: value for name, value in options.items() if name != "prompt_name"}
        return hash_texts(repr((self.fingerprint, self.spec.dtype, prompt, rest)), texts)

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, StoredVector]:
        """Read the stored vectors by key. Missing keys are left out. An error gives {} and ends the database's use.

        After an error, the database is not used again.
        """
        if self.database is None:
            return {}
        try:
            rows = self.database.get(keys)
        except UpstreamError as error:
            self._give_up(error)
            return {}
        return {key: row for key, row in zip(keys, rows, strict=True) if row is not None}

    def _write(self, keys: Sequence[bytes], encoding: Encoding) -> dict[bytes, StoredVector]:
        """Store the vectors of an encoding, and return them by key. After an error, the database is not used again."""
        if self.database is not None:
            try:
                self.database.put(keys, encoding.vectors, encoding.tokens.tolist(), self.fingerprint)
            except UpstreamError as error:
                self._give_up(error)
        rows = zip(keys, encoding.vectors, encoding.tokens.tolist(), strict=True)
        return {key: StoredVector(vector, tokens) for key, vector, tokens in rows}

    def _give_up(self, error: UpstreamError) -> None:
        self.database = None
        log.warning("vectors of %s are computed again and not stored: %s", self.name, error)


def without_store(encoder: TextEncoder) -> TextEncoder:
    """Return the inner encoder of a `StoredEncoder`, which computes every vector.

    Any other encoder is returned unchanged.
    """
    return encoder.encoder if isinstance(encoder, StoredEncoder) else encoder
