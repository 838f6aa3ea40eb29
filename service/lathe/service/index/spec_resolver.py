"""Resolution of requests to the settings of an index and the files of its chain."""

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from lathe.service.chains.names import RAW
from lathe.service.chains.registry import Registry
from lathe.service.chains.resolve import ChainResolver, Target
from lathe.service.errors import BadValueError, ConflictError
from lathe.service.index.protocol import Artifact, SearchIndex
from lathe.service.index.spec import IndexRequest, IndexSpec, ReindexRequest, require_originals
from lathe.training.encoder.text_encoder import PromptedEncoder, compute_space_id


@dataclass(frozen=True)
class _Spaces:
    """Embedding spaces of an index: of its original vectors, and of those that are searched.

    Attributes:
        encoder: encoder of the original vectors; None if callers send vectors.
        fingerprint: fingerprint of that encoder, or of the one that the chain was fitted for; None if it is not known.
        width: dimensions of the original vectors.
        target: chain of transforms, cut to the dimensions of the vectors that are searched; no chain for raw vectors.
    """

    encoder: PromptedEncoder | None
    fingerprint: str | None
    width: int
    target: Target

    def describe(self) -> dict[str, Any]:
        """Return the fields of `IndexSpec` that say in which spaces the index's vectors are."""
        return {
            "encoder": self.encoder.name if self.encoder else None,
            "encoder_fingerprint": self.fingerprint,
            "width": self.width,
            "raw_space_id": compute_space_id(self.fingerprint, None, None, self.width),
            "chain": self.target.chain,
            "dimensions": self.target.dimensions,
            "space_id": self.target.space_id,
        }


@dataclass(frozen=True)
class SpecResolver:
    """Translation of requests to create or reindex an index into complete settings and a chain of transforms.

    Attributes:
        find_encoder: returns the encoder of a name, or the default one for None.
        list_encoders: returns all encoders.
    """

    registry: Registry
    resolver: ChainResolver
    find_encoder: Callable[[str | None], PromptedEncoder]
    list_encoders: Callable[[], Iterable[PromptedEncoder]]

    def resolve_new(self, request: IndexRequest) -> tuple[IndexSpec, Artifact]:
        """Return the settings of the index that a request describes, and the files of its chain of transforms.

        The files are the manifest and tensors, or None for raw vectors.

        Raises:
            ServiceError: if an encoder or chain is unknown, the chain was fitted on vectors of another encoder, or the
                dimensions do not fit; or if no originals are to be stored, and the chain has no codes.
        """
        encoder = self._find_encoder(request.encoder, request.chain, request.width)
        spaces = self._resolve_spaces(encoder, request.chain, request.dimensions, request.width)
        if request.originals == "none" and spaces.target.quantizer is None:
            raise BadValueError(
                f"originals: none stores codes alone: {spaces.target.chain} is not a chain that ends in codes; a fit "
                "with `bytes` makes one",
                param="originals",
            )
        spec = IndexSpec(
            **spaces.describe(),
            metric=request.metric,
            m=request.m,
            ef_construction=request.ef_construction,
            text_field=request.text_field,
            originals=request.originals,
        )
        return spec, self._read_artifact(spaces.target)

    def resolve_reindexed(
        self, request: ReindexRequest, index: SearchIndex
    ) -> tuple[IndexSpec, Artifact, PromptedEncoder | None]:
        """Return an index's settings after a reindexing, the files of the chain, and the new encoder, None if it stays.

        The files are the manifest and tensors, or None for raw vectors. The settings name the index's next generation
        (its rows and graph, built again) by a new, random name. Settings that the request leaves None are kept. An
        encoder with the same fingerprint is not a change, unless `encode` is set. If no other encoder, chain or
        dimensions are requested, the index's own chain files are returned.

        Raises:
            ConflictError: if encoder, chain or dimensions would change, and the index stores no originals, or if
                `encode` is set and there is no encoder.
            ServiceError: if encoder or chain is unknown, or they and the dimensions do not fit the index.
        """
        spec = index.spec
        name = request.encoder or (spec.encoder if request.encode else None)
        if request.encode and name is None:
            raise ConflictError("the index has no encoder that encodes its texts again: name one", param="encoder")
        encoder = self.find_encoder(name) if name else None
        if encoder is not None and encoder.fingerprint == spec.encoder_fingerprint and not request.encode:
            encoder = None
        changed = {
            key: value
            for key in ("metric", "m", "ef_construction", "text_field")
            if (value := getattr(request, key)) is not None
        }
        # A random name, so that the folder of an abandoned reindexing is never taken for this one's.
        spec = replace(spec, generation=secrets.token_hex(6), **changed)
        if encoder is None and request.chain is None and request.dimensions is None:
            return spec, index.read_artifact(), None
        chain = request.chain or spec.chain
        owner = encoder or self._find_encoder(spec.encoder, chain, spec.width)
        known = None if encoder is not None else spec.width
        spaces = self._resolve_spaces(owner, chain, request.dimensions, known)
        # Compact vectors of another space can only be made from the originals.
        if spaces.target.space_id != spec.space_id:
            require_originals(spec, "another chain or encoder", "chain" if encoder is None else "encoder")
        spec = replace(spec, **spaces.describe(), vectors=spec.vectors + (encoder is not None))
        return spec, self._read_artifact(spaces.target), encoder

    def _find_encoder(self, name: str | None, chain: str, width: int | None) -> PromptedEncoder | None:
        """Return the encoder of that name, or else the encoder that the chain was fitted for, or None if there is none.

        With neither name nor chain, return None if `width` is given, else the default encoder.
        """
        if name is not None:
            return self.find_encoder(name)
        if chain == RAW:
            return None if width is not None else self.find_encoder(None)
        fitted_for = self.registry.load(chain).encoder_fingerprint
        if fitted_for is None:
            return None
        return next((encoder for encoder in self.list_encoders() if encoder.fingerprint == fitted_for), None)

    def _resolve_spaces(
        self, encoder: PromptedEncoder | None, chain: str, dimensions: int | None, width: int | None
    ) -> _Spaces:
        """Return the spaces of an index of an encoder's vectors through a chain, or of vectors without an encoder.

        Args:
            encoder: the encoder; None if there is none, or none is known.
            chain: name or reference of the chain, or `none`.
            dimensions: dimensions of the vectors that are searched; None for all that the chain gives.
            width: dimensions of the original vectors; None if they follow from encoder or chain.

        Raises:
            ServiceError: if these do not fit together, or `width` is needed and None.
        """
        if encoder is not None:
            if width not in (None, encoder.dimensions):
                raise BadValueError(
                    f"vectors of {encoder.name} have {encoder.dimensions} dimensions, not {width}", param="width"
                )
            target = self.resolver.resolve_for_encoder(encoder, chain, dimensions)
            return _Spaces(encoder, encoder.fingerprint, encoder.dimensions, target)
        if chain == RAW:
            if width is None or dimensions not in (None, width):
                raise BadValueError(
                    "raw vectors without an encoder need `width`, and cannot have other `dimensions`", param="width"
                )
            target = Target(None, None, None, width, compute_space_id(None, None, None, width))
            return _Spaces(None, None, width, target)

        loaded = self.registry.load(chain)
        input_dimensions = loaded.chain.input_dimensions or width
        if input_dimensions is None:
            raise BadValueError(
                f"the chain {loaded.ref} takes vectors of any dimensions: set `width` to the dimensions of yours",
                param="width",
            )
        target = self.resolver.resolve_for_vectors(input_dimensions, chain, dimensions)
        return _Spaces(None, loaded.encoder_fingerprint, input_dimensions, target)

    def _read_artifact(self, target: Target) -> Artifact:
        if target.loaded is None:
            return None
        return self.registry.read_files(target.loaded.name, target.loaded.version)
