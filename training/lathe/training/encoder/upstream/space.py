"""Embedding space of an API's vectors: its identity, and checks that the API still gives vectors of the same space.

An API does not tell when it replaces the model behind a name. Its vectors of a few probe texts are stored with the
embedding space. `identify` runs once, before texts are encoded; `check` runs before calls, at most once in
`probe_seconds`. If the vectors or the reported model differ from the stored ones, the space has changed: texts that are
not stored are refused, and `problem` says why.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lathe.training.encoder.devices import PROBES
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.encoder.upstream.client import UpstreamClient
from lathe.training.encoder.upstream.protocols import CallOptions
from lathe.training.encoder.upstream.store import StoredSpace, UpstreamStore
from lathe.training.endpoint_client import CallError
from lathe.training.errors import SpaceChangedError, UpstreamBusyError, UpstreamError, UpstreamUnavailableError
from lathe.training.workspace import digest
from lathe.transforms.vectors import find_valid_rows

PROBE_TEXTS = PROBES[1:5]
"""Texts whose vectors show whether an API still gives vectors of the same embedding space."""

MIN_COSINE = 0.99
"""Minimum cosine of a probe text's vectors at two times if the model is the same. Batches, hardware and half precision
change vectors by 1e-3 at most; another model, or another training, by much more."""

log = logging.getLogger(__name__)


class UpstreamSpace:
    """Embedding space of an API's vectors, recognized by the vectors of a few probe texts.

    All coroutines must run in the event loop of the calls.

    Args:
        spec: spec of the encoder, with an `upstream`.
        max_length: tokens that the API is assumed to read of a text.
        prompts: prompts of the encoder by name.
        prompt: prompt of the probe texts; None for none.
        client: makes the calls.
        store: where the last confirmed space is stored; None stores none.

    Attributes:
        identified: the embedding space that `identify` found; None before.
        problem: why texts that are not stored are refused; None while the space has not changed.
    """

    def __init__(
        self,
        spec: EncoderSpec,
        max_length: int,
        prompts: Mapping[str, str],
        prompt: str | None,
        client: UpstreamClient,
        store: UpstreamStore | None,
    ) -> None:
        assert spec.upstream is not None
        self.name, self.upstream, self.max_length = spec.name, spec.upstream, max_length
        self.request_digest = digest(
            self.upstream.identity,
            self.upstream.model,
            spec.revision,
            self.upstream.dimensions,
            max_length,
            dict(sorted(prompts.items())),
        )
        """Digest of the settings that are sent with a call, a part of the fingerprint."""
        self.address = digest(self.request_digest, self.upstream.protocol, self.upstream.url)
        """Digest of `request_digest`, protocol and URL. APIs at two addresses may report different models."""
        self.prompt = prompt
        self.client, self.store = client, store
        self.identified: StoredSpace | None = None
        self.problem: str | None = None
        self.checking = asyncio.Lock()

    @property
    def known(self) -> StoredSpace:
        """Embedding space that `identify` found. `identify` must be called first."""
        assert self.identified is not None
        return self.identified

    async def identify(self) -> None:
        """Identify the embedding space of the API by its vectors of the probe texts, and set `identified`.

        Later calls do nothing, and concurrent calls wait for each other. The API is not called if a process did so less
        than `probe_seconds` ago. If the API cannot be reached, the space that was last confirmed is used. If the
        vectors are of another space than before, `problem` is set.

        Raises:
            UpstreamError: if the API gives no valid answer, and no space of it is stored.
        """
        async with self.checking:
            if self.identified is None:
                await self._identify()

    async def _identify(self) -> None:
        """Set `identified` to the stored embedding space, or to a new, stored one. Changed vectors set `problem`.

        The stored space is used if it was checked recently, the API is unavailable, or the API reports the same model.
        In the last case the probe vectors are compared, and `problem` is set if they differ. A new space is stored.
        """
        # Another process compared the vectors a short while ago: no call is made.
        known = self.store.read_space(self.address) if self.store is not None else None
        if known is not None and not self._is_check_due(known):
            self.identified = known
            return

        try:
            probed = await self._embed_probe_texts()
        except (UpstreamUnavailableError, UpstreamBusyError):
            if known is None:
                raise
            log.warning("the encoder %s cannot be reached; its stored vectors are served", self.name)
            self.identified = known
            return

        # The API reports the same model; only the probe vectors show whether that is true.
        if known is not None and known.fingerprint == probed.fingerprint:
            self.identified = known
            self._confirm_or_refuse(probed)
            return

        if known is not None:
            log.warning("%s reports another model; its vectors belong to another embedding space now", self.name)

        # Before the space is stored: two models under one fingerprint would mix their vectors.
        self._refuse_shared_fingerprint(probed)
        self.identified = probed
        self._write()

    def _refuse_shared_fingerprint(self, space: StoredSpace) -> None:
        """Raise `UpstreamError` if a stored space with the same fingerprint has other vectors of the probe texts.

        This happens if `provider` gives two addresses one name, but their models differ.
        """
        # The address is not a part of the fingerprint, so that several addresses of one provider can share vectors.
        shared = None if self.store is None else self.store.find_space(space.fingerprint)
        if shared is not None and _find_minimum_cosine(shared.probes, space.probes) < MIN_COSINE:
            raise UpstreamError(
                f"{self.upstream.provider_name} answers other vectors at this address than at another one under the "
                f"name {self.upstream.model}: give the encoder {self.name} another provider, or another revision"
            )

    async def check(self) -> None:
        """Compare the vectors of the probe texts with earlier ones, at most once in `probe_seconds`. A change raises.

        The error is also raised in later calls. If the space has changed, vectors that were stored since the last
        comparison are deleted, because they may be of either space.

        Raises:
            SpaceChangedError: if the space has changed, now or before; it is compared again after `probe_seconds`.
            UpstreamError: if the API does not answer.
        """
        async with self.checking:
            if self._is_check_due(self.known):
                self._confirm_or_refuse(await self._embed_probe_texts())
            if self.problem is not None:
                raise SpaceChangedError(self.problem)

    def check_reported_model(self, reported: Mapping[str, str]) -> None:
        """Raise `SpaceChangedError` if an answer reports another model than earlier answers.

        In that case, texts that are not stored are refused from now on.
        """
        if change := self._describe_model_change(reported):
            self._refuse(change)
            raise SpaceChangedError(change)

    def _is_check_due(self, space: StoredSpace) -> bool:
        return time.time() - space.checked_at >= self.upstream.probe_seconds

    def _confirm_or_refuse(self, answered: StoredSpace) -> None:
        """Compare the API's vectors of the probe texts with the known space, and refuse further texts if they differ.

        Otherwise the time of the comparison is stored, and `problem` becomes None.
        """
        if change := self._describe_model_change(answered.reported) or self._describe_vector_change(answered.probes):
            self._refuse(change)
            return
        self.problem = None
        self.identified = replace(self.known, checked_at=answered.checked_at)
        self._write()

    def _write(self) -> None:
        if self.store is not None:
            self.store.write_space(self.known, self.address)

    def _refuse(self, change: str) -> None:
        """Set `problem`, so that texts that are not stored are refused, and delete stored vectors of uncertain origin.

        Vectors stored after the last comparison may be of another model. They are deleted, and the change is logged,
        only if `problem` was None. Texts are accepted again when the API's vectors of the probe texts agree with the
        known embedding space.
        """
        if self.problem is None:
            log.warning("%s", change)
            if self.store is not None:
                self.store.delete_unconfirmed(self.known.fingerprint)
        self.problem = change
        self.identified = replace(self.known, checked_at=time.time())

    def _describe_model_change(self, reported: Mapping[str, str]) -> str | None:
        """Return a message if an answer reports another model than earlier answers did, else None."""
        for name, value in reported.items():
            before = self.known.reported.get(name)
            if before is not None and before != value:
                return (
                    f"{self.upstream.provider_name} reports {value} as {name} of {self.upstream.model}, but reported "
                    f"{before} before: restart the encoder {self.name} to use the new vectors, then fit its chains and "
                    "reindex its indexes again"
                )

        return None

    def _describe_vector_change(self, probes: NDArray[np.float32]) -> str | None:
        """Return a message with what to do if the vectors of the probe texts differ from earlier vectors, else None."""
        before, now = self.known.probes.shape[1], probes.shape[1]
        cosine = _find_minimum_cosine(self.known.probes, probes)
        if cosine >= MIN_COSINE:
            return None

        difference = f"cosine {cosine:.3f} for the same text" if before == now else f"{now} dimensions, not {before}"
        return (
            f"{self.upstream.provider_name} answers other vectors under the name {self.upstream.model} than before "
            f"({difference}): set another revision of {self.name} in its settings, then fit its chains and reindex its "
            "indexes again"
        )

    async def _embed_probe_texts(self) -> StoredSpace:
        """Call the API for the vectors of the probe texts, and return a `StoredSpace` of now. Invalid vectors raise.

        Raises:
            UpstreamError: if the API does not answer, or the vectors are not finite, zero or of other dimensions than
                requested.
        """
        provider = self.upstream.provider_name
        try:
            answer = await self.client.send(PROBE_TEXTS, CallOptions(self.prompt), self.max_length)
        except CallError as error:
            raise UpstreamError(f"{provider}: {error}") from None

        reported = dict(answer.reported)
        if not find_valid_rows(answer.vectors).all():
            raise UpstreamError(f"{provider}: it answers NaN, inf or only zeros for the probe texts")

        dimensions = answer.vectors.shape[1]
        if self.upstream.dimensions not in (None, dimensions):
            raise UpstreamError(
                f"{provider}: it answers {dimensions} dimensions instead of the {self.upstream.dimensions} in the "
                "settings: leave dimensions out"
            )

        fingerprint = digest(self.request_digest, dict(sorted(reported.items())), dimensions)[:32]
        return StoredSpace(fingerprint, reported, answer.vectors, time.time())


def _find_minimum_cosine(before: NDArray[np.float32], now: NDArray[np.float32]) -> float:
    """Compute the lowest cosine between a probe text's earlier and present vector, or -1 if the dimensions differ."""
    if before.shape != now.shape:
        return -1.0
    return float((normalize_rows(before) * normalize_rows(now)).sum(axis=1).min())


def normalize_rows(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale the rows of `(n, d)` to unit length, as a new float32 array. A row of zeros stays zero."""
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    unit: NDArray[np.float32] = (vectors / np.maximum(norms, 1e-12)).astype(np.float32)
    return unit
