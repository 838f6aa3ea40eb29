"""Values of a request's `model`: `ENCODER` or `ENCODER+CHAIN`, each with or without `:DIMENSIONS`.

A chain may name its version, `CHAIN@v`. The name of an encoder, or of its model, wins over what its parts would say:
`nomic:64` is an encoder of that name if there is one, else the encoder `nomic` in 64 dimensions.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lathe.service.chains.names import parse_number
from lathe.service.chains.registry import NESTED, Registry
from lathe.service.chains.resolve import ChainResolver
from lathe.service.encoders.engine.engine import Engine
from lathe.service.encoders.engine.work import EncoderInfo
from lathe.service.errors import BadValueError
from lathe.transforms.errors import ArtifactError

SIZE = re.compile(r"(.*):([0-9]+)", re.DOTALL)
"""Pattern of a name that ends in a number of dimensions."""

MIN_LISTED_DIMENSIONS = 32
"""Smallest size of a nested chain that is listed; requests may name smaller ones, and any in between."""


@dataclass(frozen=True)
class ModelChoice:
    """The encoder, chain of transforms and dimensions that a request's `model` selects.

    Attributes:
        model: the value itself; None if the request names none.
        chain: name or reference of the chain; None if none is named.
        dimensions: dimensions that the name ends in; None if it ends in none.
    """

    model: str | None
    engine: Engine
    chain: str | None = None
    dimensions: int | None = None

    def choose_dimensions(self, requested: int | None) -> int | None:
        """Return the dimensions from the model name or from the request's field, or None if neither names any.

        Raises:
            BadValueError: if they select different ones.
        """
        if None not in (self.dimensions, requested) and self.dimensions != requested:
            raise BadValueError(
                f"the model {self.model!r} asks for {self.dimensions} dimensions, the field `dimensions` for "
                f"{requested}: leave one of them out",
                param="dimensions",
            )
        return self.dimensions or requested


def parse_model(model: str | None, find_engine: Callable[[str | None], Engine], names: set[str]) -> ModelChoice:
    """Return what a request's `model`, `ENCODER+CHAIN:DIMENSIONS` with optional parts, selects.

    Without the name of an encoder, such as in `+CHAIN`, the default encoder is meant.

    Args:
        model: the value; None or an empty text selects the default encoder.
        find_engine: returns the engine of an encoder by its name.
        names: names of encoders and models, which are not divided.

    Raises:
        UnknownNameError: if there is no such encoder.
        BadValueError: if the name ends in 0 or in a number of more than nine digits.
    """
    if not model or model in names:
        return ModelChoice(model, find_engine(model or None))

    match = SIZE.fullmatch(model)
    name, digits = match.groups() if match else (model, None)
    dimensions = None if digits is None else parse_number(digits)
    if digits is not None and not dimensions:
        raise BadValueError(f"{digits[:40]} is not a number of dimensions, in the model {model!r}", param="model")

    encoder, _, chain = name.partition("+")
    return ModelChoice(model, find_engine(encoder or None), chain or None, dimensions)


def list_model_names(engines: dict[str, Engine], registry: Registry, resolver: ChainResolver) -> list[str]:
    """Return values that a request's `model` can have: encoders, then `ENCODER+CHAIN`, then both with `:DIMENSIONS`.

    A chain matches the encoder it was fitted on, or all if it was fitted without one. Encoders that were never ready
    are listed without chains, and chains that cannot be read are left out. Of the dimensions of a nested chain, a half,
    a quarter and so on are listed.
    """
    chains: list[str] = []
    sizes: list[str] = []
    ready = [engine.info for engine in engines.values() if engine.info is not None]
    for encoder in ready:
        sizes += [f"{encoder.name}:{size}" for size in _list_route_sizes(encoder, resolver)]

    for chain in registry.names():
        live = registry.live(chain)
        if live is None:
            continue
        try:
            manifest = registry.manifest(chain, live)
        except ArtifactError:  # it cannot be served, so it is not offered
            continue

        fitted_on = manifest.get("encoder")
        names = [
            f"{encoder.name}+{chain}"
            for encoder in ready
            if fitted_on is None or fitted_on["fingerprint"] == encoder.fingerprint
        ]
        chains += names
        if manifest.get("nested"):
            sizes += [f"{name}:{size}" for name in names for size in _halve(manifest["output_dimensions"])]
    return [*engines, *chains, *sizes]


def _list_route_sizes(encoder: EncoderInfo, resolver: ChainResolver) -> list[int]:
    """Return the numbers of dimensions for which a chain of transforms is registered for an encoder, largest first.

    Of a nested chain, which can be cut to any number, only a half of its dimensions, a quarter and so on are listed.
    """
    try:
        routes = resolver.registry.size_routes.get_current().get(encoder.fingerprint, {})
        chains = {route: resolver.registry.size_routes.find_chain(routes, route) for route in routes}
    except ArtifactError:  # no chain answers `dimensions`
        return []
    sizes = {int(route) for route, loaded in chains.items() if loaded and route != NESTED}
    nested = chains.get(NESTED)
    return sorted(sizes | set(_halve(nested.chain.output_dimensions if nested else None)), reverse=True)


def _halve(dimensions: int | None) -> Iterator[int]:
    """Yield half of `dimensions`, a quarter and so on, down to `MIN_LISTED_DIMENSIONS`. None yields nothing."""
    size = (dimensions or 0) // 2
    while size >= MIN_LISTED_DIMENSIONS:
        yield size
        size //= 2
