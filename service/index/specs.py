"""Resolution of requests to the settings of an index and the files of its chain."""

import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from service.bodies import IndexBody, ReindexBody
from service.errors import BadValueError
from service.index.index import Index
from service.index.protocol import Artifact
from service.index.spec import IndexSpec
from service.registry import Registry
from service.targets import RAW, Target, Targets
from training.encoder.space import compute_space_id
from training.encoder.spec import HasSpace


class Specs:
    """Resolver of encoder, chain and spaces of an index.

    Args:
        registry: registry of the chains.
        targets: resolves a chain with a number of dimensions.
        named: returns the encoder of a name, or the default one for None.
        encoders: returns all encoders.
    """

    def __init__(
        self,
        registry: Registry,
        targets: Targets,
        named: Callable[[str | None], HasSpace],
        encoders: Callable[[], Iterable[HasSpace]],
    ) -> None:
        self.registry = registry
        self.targets = targets
        self.named = named
        self.encoders = encoders

    def of_new(self, body: IndexBody) -> tuple[IndexSpec, Artifact]:
        """Return the settings of a new index and its chain files, as a request asks for them.

        Raises:
            ServiceError: if a name is unknown, or spaces or dimensions do not fit together.
        """
        encoder = self.encoder_for(body.encoder, body.chain, body.width)
        target, fingerprint, width = self.target(encoder, body.chain, body.dimensions, body.width)
        spec = IndexSpec(
            **spaces(encoder, target, fingerprint, width),
            metric=body.metric,
            m=body.m,
            ef_construction=body.ef_construction,
            text_field=body.text_field,
            originals=body.originals,
        )
        return spec, self.artifact(target)

    def of_reindexed(self, body: ReindexBody, index: Index) -> tuple[IndexSpec, Artifact, HasSpace | None]:
        """Return settings and chain files of an index's next generation, and the encoder if it changes, else None.

        Raises:
            ServiceError: as `of_new`.
        """
        spec = index.generation.spec
        encoder = self.named(body.encoder) if body.encoder else None
        if encoder is not None and encoder.fingerprint == spec.encoder_fingerprint:
            encoder = None
        changed = {
            key: value
            for key in ("metric", "m", "ef_construction", "text_field")
            if (value := getattr(body, key)) is not None
        }
        spec = replace(spec, generation=secrets.token_hex(6), **changed)
        if encoder is None and body.chain is None and body.dimensions is None:
            return spec, None if spec.chain == RAW else index.record.artifact(spec.chain), None
        chain = body.chain or spec.chain
        owner = encoder or self.encoder_for(spec.encoder, chain, spec.width)
        known = None if encoder is not None else spec.width
        target, fingerprint, width = self.target(owner, chain, body.dimensions, known)
        spec = replace(
            spec,
            **spaces(owner, target, fingerprint, width),
            vectors=spec.vectors + (encoder is not None),
        )
        return spec, self.artifact(target), encoder

    def encoder_for(self, name: str | None, chain: str, width: int | None) -> HasSpace | None:
        """Return the encoder of an index: the named one, else the one its chain was fitted for; None for vectors only.

        For raw vectors without a given width, the default encoder is returned.
        """
        if name is not None:
            return self.named(name)
        if chain == RAW:
            return None if width is not None else self.named(None)
        fitted_for = self.registry.load(chain).encoder_fingerprint
        if fitted_for is None:
            return None
        return next((encoder for encoder in self.encoders() if encoder.fingerprint == fitted_for), None)

    def target(
        self, encoder: HasSpace | None, chain: str, dimensions: int | None, width: int | None
    ) -> tuple[Target, str | None, int]:
        """Return the chain's target, the encoder's fingerprint, and the number of dimensions of the originals.

        Args:
            encoder: encoder of the index; None for vectors without an encoder.
            chain: chain reference, or `none`.
            dimensions: requested number of output dimensions; None for the chain's own.
            width: requested number of dimensions of the originals; None if unknown.

        Raises:
            ServiceError: if these do not fit together.
        """
        if encoder is not None:
            if width not in (None, encoder.dimensions):
                raise BadValueError(f"{encoder.name} gives vectors {encoder.dimensions} wide", param="width")
            return self.targets.of_encoder(encoder, chain, dimensions), encoder.fingerprint, encoder.dimensions
        if chain == RAW:
            if width is None or dimensions not in (None, width):
                raise BadValueError("raw vectors of no encoder keep the width that is given", param="width")
            return Target(None, None, None, width, compute_space_id(None, None, None, width)), None, width
        loaded = self.registry.load(chain)
        wide = loaded.chain.input_dimensions or width
        if wide is None:
            raise BadValueError(f"the chain {loaded.ref} takes any width: give the vectors' width", param="width")
        return self.targets.of_vectors(wide, chain, dimensions), loaded.encoder_fingerprint, wide

    def artifact(self, target: Target) -> Artifact:
        """Read manifest and tensors of the target's chain from the registry; return None for raw vectors."""
        if target.loaded is None:
            return None
        return self.registry.read_files(target.loaded.name, target.loaded.version)


def spaces(encoder: HasSpace | None, target: Target, fingerprint: str | None, width: int) -> dict[str, Any]:
    """Return the part of an index's settings that identifies the spaces of its original and reduced vectors."""
    return {
        "encoder": encoder.name if encoder else None,
        "encoder_fingerprint": fingerprint,
        "width": width,
        "raw_space_id": compute_space_id(fingerprint, None, None, width),
        "chain": target.chain,
        "dimensions": target.dimensions,
        "space_id": target.space_id,
    }
