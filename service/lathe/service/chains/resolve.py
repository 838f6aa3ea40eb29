"""Resolution of a request's chain name and dimensions to a chain, its output dimensions and its embedding space.

Encodings of the answered vectors, `output_dtype`, are here too: floats, bytes, bits, or the chain's own codes. Values
and packing are those of Cohere's and Voyage's APIs. Another encoding is a function here, with its name in
`OutputDtype` and in `ENCODINGS`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lathe.service.chains.folded_forms import ChainRef
from lathe.service.chains.loaded_chain import LoadedChain
from lathe.service.chains.names import RAW
from lathe.service.chains.registry import Registry
from lathe.service.errors import BadValueError, ConflictError, WrongShapeError
from lathe.training.encoder.text_encoder import PromptedEncoder, compute_space_id
from lathe.transforms.base import Side
from lathe.transforms.chain import Chain
from lathe.transforms.codes import Int8, Quantizer

OutputDtype = Literal["float", "float16", "int8", "uint8", "binary", "ubinary", "codes"]

INT8_RANGE = 12.0
"""Half-width of the range of int8, in units of 1/√k, the root mean square of a unit vector's k values.

A range that depends on k only keeps a vector's code independent of other vectors, and inner products of codes
proportional to those of the vectors. MiniLM, e5 and WordLlama reach 5; SmolLM2 has single dimensions that reach 20, of
which 12 clips one value in 8,000. A wider range costs the others precision. Up to 144 dimensions the range ends at 1,
the largest value of a unit vector."""

Encoding = Callable[[NDArray[np.float32], Quantizer | None], NDArray[Any]]


def encode_output(floats: NDArray[np.float32], dtype: OutputDtype, quantizer: Quantizer | None) -> NDArray[Any]:
    """Encode vectors `(n, k)` as a request's output dtype: floats, bytes, bits, or the chain's byte codes.

    The array is `(n, k)` for floats, int8 and uint8, `(n, ⌈k/8⌉)` for binary and ubinary, and `(n, bytes)` for codes.

    Args:
        floats: what the chain answers, decoded if it has a quantizer.
        dtype: the encoding, one that `_find_dtype_problem` finds no problem with.
        quantizer: the chain's last step if it is a quantizer.
    """
    return ENCODINGS[dtype](floats, quantizer)


def _find_dtype_problem(dtype: OutputDtype, quantizer: Quantizer | None, is_query: bool, unit_norm: bool) -> str | None:
    """Return a sentence that says why a chain's outputs cannot be encoded as `dtype`, or None if they can.

    Args:
        dtype: the encoding.
        quantizer: the chain's last step if it is a quantizer.
        is_query: whether the floats are queries, which have no codes.
        unit_norm: whether the norm of the floats is at most 1.
    """
    if dtype == "codes" and quantizer is None:
        return "output_dtype codes needs a chain that ends in a quantizer: codes, int8 or binary"
    if dtype == "codes" and is_query:
        return "queries have no codes: they are compared as floats with the codes of documents (input_type query)"
    if dtype in ("int8", "uint8") and not unit_norm and not isinstance(quantizer, Int8):
        return f"output_dtype {dtype} needs vectors of norm 1, or a chain that ends in int8, which fits the ranges"
    return None


def _as_float16(floats: NDArray[np.float32]) -> NDArray[np.float16]:
    """Round floats `(n, k)` to half precision. Raise `BadValueError` if one is too large for it."""
    with np.errstate(over="ignore"):
        halves = floats.astype(np.float16)
    if not np.isfinite(halves).all():
        raise BadValueError("a number is above 65,504, the largest of float16: ask for float", param="output_dtype")
    return halves


def _as_int8(floats: NDArray[np.float32], quantizer: Quantizer | None) -> NDArray[np.int8]:
    """Encode floats `(n, k)` as signed bytes `(n, k)`, clipping values beyond the range.

    A chain that ends in int8 gives the ranges. Without one, a factor that only k decides is used.
    """
    if isinstance(quantizer, Int8):
        return np.asarray(quantizer.transform(floats), np.int8)
    # The k values of a unit vector have a root mean square of 1/√k: 12 times that, at most 1, is coded as 127.
    scaled = np.rint(floats * np.float32(127 * max(1.0, np.sqrt(floats.shape[1]) / INT8_RANGE)))
    return np.asarray(scaled.clip(-127, 127), np.int8)


def _flip_sign_bit(values: NDArray[Any]) -> NDArray[Any]:
    """Convert int8 values to uint8, 128 higher, or uint8 values to int8, 128 lower."""
    return (values.view(np.uint8) ^ 128).view(np.uint8 if values.dtype == np.int8 else np.int8)


def _as_codes(floats: NDArray[np.float32], quantizer: Quantizer | None) -> NDArray[Any]:
    """Encode floats `(n, k)`, which are decoded byte codes, as the chain's own codes again."""
    assert quantizer is not None  # `_find_dtype_problem` has checked it
    return np.asarray(quantizer.recode(floats))


ENCODINGS: dict[OutputDtype, Encoding] = {
    "float": lambda floats, _: floats,
    "float16": lambda floats, _: _as_float16(floats),
    "int8": _as_int8,
    "uint8": lambda floats, quantizer: _flip_sign_bit(_as_int8(floats, quantizer)),
    # A bit for each dimension, 1 where it is above 0: the first dimension is the highest bit of a byte.
    "binary": lambda floats, _: _flip_sign_bit(np.packbits(floats > 0, axis=1)),
    "ubinary": lambda floats, _: np.packbits(floats > 0, axis=1),
    "codes": _as_codes,
}


InputType = Side
"""Whether inputs are queries or documents: some chains map queries in their own way, and none quantizes them."""


@dataclass(frozen=True)
class Target:
    """A chain cut to a number of dimensions, or no chain.

    Attributes:
        loaded: the chain's version; None for raw vectors.
        folded: the chain for inputs of `input_type` with its affine steps multiplied into one; None for raw vectors.
        chain_ref: reference from which a worker process loads the same chain; None for raw vectors.
        space_id: id of the vector space of the outputs, the same for queries and documents; only vectors with the same
            id may be compared.
        normalized: whether the norms of the outputs are at most 1.
        output_dtype: requested encoding of the outputs; None leaves it to the format of the response.
    """

    loaded: LoadedChain | None
    folded: Chain | None
    chain_ref: ChainRef | None
    dimensions: int
    space_id: str
    input_type: InputType = "document"
    normalized: bool = True
    output_dtype: OutputDtype | None = None

    @property
    def chain(self) -> str:
        """Reference `name@version` of the chain, or `none`."""
        return self.loaded.ref if self.loaded else RAW

    def apply(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Transform vectors `(n, d)` by the chain into floats `(n, k)`. Without a chain, return the vectors."""
        return vectors if self.folded is None else self.folded.floats(vectors)

    @property
    def quantizer(self) -> Quantizer | None:
        """The chain's quantizer, whether or not it is applied to these inputs, or None if the chain has none."""
        return self.loaded.quantizer if self.loaded else None

    def choose_dtype(self, as_codes: bool) -> OutputDtype:
        """Return the encoding of the outputs: the one requested, else "codes" if `as_codes` allows them, else "float".

        Args:
            as_codes: whether the format of the response, like .npy, holds codes by default. Queries and chains without
                a quantizer get floats all the same.
        """
        coded = as_codes and self.input_type == "document" and self.quantizer is not None
        return self.output_dtype or ("codes" if coded else "float")

    def encode(self, floats: NDArray[np.float32], as_codes: bool) -> NDArray[Any]:
        """Encode the floats `(n, k)` that `apply` returned in the dtype that `choose_dtype` chooses."""
        return encode_output(floats, self.choose_dtype(as_codes), self.quantizer)

    def with_output_dtype(self, dtype: OutputDtype | None) -> "Target":
        """Return a copy of the target that encodes its outputs as `dtype`, or the target itself if `dtype` is None.

        Raises:
            BadValueError: if its outputs cannot be encoded so.
        """
        if dtype is None:
            return self
        is_query = self.input_type == "query"
        problem = _find_dtype_problem(dtype, self.quantizer, is_query, self.normalized)
        if problem is not None:
            raise BadValueError(f"{problem} (chain: {self.chain})", param="output_dtype")
        return replace(self, output_dtype=dtype)


class NotAtOnceError(Exception):
    """A request cannot be begun on the event loop: a file must be read, a chain folded, or Redis asked."""


class ChainResolver:
    """Finds the chain of transforms, output dimensions and embedding space that a request's fields select."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    def resolve_for_encoder(
        self,
        encoder: PromptedEncoder,
        chain: str | None,
        dimensions: int | None,
        normalize: bool = True,
        input_type: InputType = "document",
        at_once: bool = False,
    ) -> Target:
        """Find the chain, or none, that a request's chain name and dimensions select for an encoder, as a target.

        The chain name `none` selects raw vectors. If `chain` is None, `dimensions` decides: None or the encoder's
        dimensions select raw vectors, and any other number selects the chain of its size route (the chain registered
        for this number).

        Args:
            encoder: the encoder.
            chain: name or reference of the chain.
            dimensions: dimensions of the outputs; None for all.
            normalize: whether unit vectors are wanted.
            input_type: `query` takes the chain's map of queries, without a quantizer.
            at_once: whether to raise an error instead of reading files or folding a chain.

        Raises:
            NotAtOnceError: with `at_once`, if the chain is not in memory in this form.
            BadValueError: if no chain, or not the named one, serves the dimensions; `none` serves only the encoder's.
            ConflictError: if the chain was fitted on vectors of another encoder or of none, or takes other dimensions.
            UnknownNameError: if there is no such chain.
            ArtifactError: if the chain's files are damaged.
        """
        if chain == RAW and dimensions not in (None, encoder.dimensions):
            raise BadValueError(
                f"raw vectors of {encoder.name} have {encoder.dimensions} dimensions, not {dimensions}",
                param="dimensions",
            )

        routes = self.registry.size_routes
        if chain is not None and chain != RAW:
            loaded = self._get_from_memory(chain) if at_once else self.registry.load(chain)
        elif dimensions is None or dimensions == encoder.dimensions:
            raw = compute_space_id(encoder.fingerprint, None, None, encoder.dimensions)
            return Target(None, None, None, encoder.dimensions, raw, input_type, normalize)
        elif at_once:
            loaded = self._get_from_memory(routes.find_ref(encoder.fingerprint, dimensions))
        else:
            loaded = routes.find_chain_for(encoder.fingerprint, dimensions, encoder.dimensions)

        fitted_on, width = loaded.encoder_fingerprint, loaded.input_dimensions
        if fitted_on is None:
            raise ConflictError(
                f"the chain {loaded.ref} was fitted on vectors whose encoder is not named, so it takes vectors and no "
                f"texts: if they are vectors of {encoder.name}, fit it again with --encoder {encoder.name}",
                param="chain",
                code="space_mismatch",
            )
        if fitted_on != encoder.fingerprint or width not in (None, encoder.dimensions):
            raise ConflictError(
                f"the chain {loaded.ref} takes vectors of another space (encoder {fitted_on}, "
                f"{width} dimensions) than {encoder.name} ({encoder.fingerprint}, {encoder.dimensions} dimensions)",
                param="chain",
                code="space_mismatch",
            )
        return self._build_target(
            loaded, encoder.fingerprint, encoder.dimensions, dimensions, normalize, input_type, at_once
        )

    def _get_from_memory(self, ref: str | None) -> LoadedChain:
        loaded = None if ref is None else self.registry.get_loaded(ref)
        if loaded is None:
            raise NotAtOnceError
        return loaded

    def resolve_for_vectors(
        self, input_dimensions: int, chain: str, dimensions: int | None, input_type: InputType = "document"
    ) -> Target:
        """Find the chain that a request's chain name and dimensions select for vectors of the caller, as a target.

        The vectors count as vectors of the encoder that the chain was fitted on.

        Args:
            input_dimensions: dimensions of the vectors.
            chain: name or reference of the chain.
            dimensions: dimensions of the outputs; None for all.
            input_type: `query` takes the chain's map of queries, without a quantizer.

        Raises:
            WrongShapeError: if the chain takes vectors of other dimensions.
            BadValueError: if the chain does not serve the dimensions.
            UnknownNameError: if there is no such chain.
            ArtifactError: if the chain's files are damaged.
        """
        loaded = self.registry.load(chain)
        if loaded.input_dimensions not in (None, input_dimensions):
            raise WrongShapeError(
                f"the chain {loaded.ref} takes vectors of {loaded.input_dimensions} dimensions, not {input_dimensions}",
                param="vectors",
            )
        return self._build_target(loaded, loaded.encoder_fingerprint, input_dimensions, dimensions, True, input_type)

    def _build_target(
        self,
        loaded: LoadedChain,
        fingerprint: str | None,
        input_dimensions: int,
        dimensions: int | None,
        normalize: bool,
        input_type: InputType,
        at_once: bool = False,
    ) -> Target:
        if dimensions is not None and not loaded.serves(dimensions):
            raise BadValueError(
                f"the chain {loaded.ref} serves {loaded.chain.describe_dimensions()} dimensions, not {dimensions}",
                param="dimensions",
            )
        size = dimensions or loaded.output_dimensions or input_dimensions
        space = compute_space_id(fingerprint, loaded.ref, loaded.digest, size)
        normalized = loaded.is_normalized(normalize)
        # Folding multiplies matrices, and would hold up all requests on the event loop.
        find_form = loaded.forms.find if at_once else loaded.forms.get
        folded = find_form(dimensions, normalized, input_type)
        if folded is None:
            raise NotAtOnceError
        ref = ChainRef(loaded.folder, loaded.digest, dimensions, normalized, input_type)
        return Target(loaded, folded, ref, size, space, input_type, normalized)
