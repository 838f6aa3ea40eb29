"""Base class of row-wise functions of vectors that can be applied and perhaps inverted.

`Transform` adds fitting. A signature says what is known of the vectors between two steps before fitting, to reject
impossible chains early. A view transforms rows when they are read.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, Protocol, overload

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lathe.transforms.base.validation import ParameterRule
from lathe.transforms.errors import InputError, NotFittedError, StepError
from lathe.transforms.statistics import RowTransform, SharedVectors
from lathe.transforms.vectors import Vectors, as_tensor, standardize_layout


@dataclass(frozen=True)
class Signature:
    """What is known, without data, of the vectors between two steps of a chain: dimensions, rank, codes or floats.

    Attributes:
        dimensions: number of dimensions; None while unknown.
        zero_variance_directions: number of directions in which earlier steps leave no variance, so that the rank is at
            most `dimensions − zero_variance_directions`.
        codes: kind of the quantizer if the vectors are codes; None for floats.
        target_dimensions: number of output dimensions of steps fitted on pairs; None while unknown.
    """

    dimensions: int | None = None
    zero_variance_directions: int = 0
    codes: str | None = None
    target_dimensions: int | None = None

    def add_zero_variance(self, directions: int) -> "Signature":
        """Return a copy of the signature that counts `directions` more directions without variance."""
        return replace(self, zero_variance_directions=self.zero_variance_directions + directions)

    def reduce(self, kind: str, dimensions: int, allow_same: bool = True) -> "Signature":
        """Return the signature of vectors reduced to `dimensions` dimensions. Vectors of too few dimensions raise.

        The rank becomes at most `dimensions`. Without known input dimensions the outputs are taken to have full rank.

        Args:
            kind: kind of the reducing step, for the error message.
            dimensions: number of output dimensions.
            allow_same: whether the number of dimensions may stay the same.

        Raises:
            StepError: if the vectors have too few dimensions.
        """
        if self.dimensions is None:
            return replace(self, dimensions=dimensions, zero_variance_directions=0)
        if dimensions > self.dimensions or (dimensions == self.dimensions and not allow_same):
            needed = f"at least {dimensions}" if allow_same else f"more than {dimensions}"
            raise StepError(f"{kind} to {dimensions} needs vectors of {needed} dimensions, not {self.dimensions}")

        # A reduction keeps at most `rank` directions that vary, so only dimensions beyond the rank are surely empty.
        rank = self.dimensions - self.zero_variance_directions
        return replace(self, dimensions=dimensions, zero_variance_directions=max(0, dimensions - rank))


Spec = dict[str, Any]
"""A step as a JSON object: `{"kind": …}` and its parameters."""

Side = Literal["query", "document"]
"""Which vectors a map is applied to: query vectors, or vectors of the documents that are searched."""

Inverse = Literal["exact", "approximate", "none"]
"""How well a map can be inverted: up to rounding, only to an estimate of the input, or not at all."""


class Map(nn.Module):
    """A row-wise function of vectors, `(n, d)` to `(n, k)`: an `nn.Module` whose state is buffers, not parameters.

    Fitted transforms, the maps they fold into, and their inverses are maps. A subclass sets `kind`, registers its
    state as buffers and defines `forward`; a map that is a step of a chain also defines `output_signature`.
    """

    kind: ClassVar[str]
    parameter_rules: ClassVar[Mapping[str, ParameterRule]] = {}
    """Rules of the parameters of `__init__` by name, checked in this order by `check_parameters`."""
    nested: bool = False
    """Whether outputs may be truncated to any number of leading dimensions and renormalized (Matryoshka)."""
    inverse_kind: Inverse = "none"
    """How well `inverse` recovers inputs: 'exact', 'approximate', or 'none' without an inverse."""
    two_sided: bool = False
    """Whether queries are mapped by `query_map`, and not as documents are."""
    queries_only: bool = False
    """Whether documents stay as they are, and queries alone are mapped."""

    def __init__(self, **buffers: Tensor | None) -> None:
        """Register the tensors as buffers of these names."""
        super().__init__()
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)

    # Every buffer passes one of the next two methods: of a fit, an artifact, a folded map or an inverse. `.to`
    # and copies keep the layout. So what is saved, or sent to another process, computes the same bits there.
    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute.

        A tensor assigned to a buffer is first copied to the standard memory layout if it has another.
        """
        if isinstance(value, Tensor) and name in self.__dict__.get("_buffers", ()):
            value = standardize_layout(value)
        super().__setattr__(name, value)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Register a buffer as `nn.Module` does.

        The tensor is first copied to the standard memory layout if it has another.
        """
        super().register_buffer(name, None if tensor is None else standardize_layout(tensor), persistent)

    def forward(self, x: Tensor) -> Tensor:
        """Map rows `(n, d)` to outputs `(n, k)`, each row independently and without side effects.

        Subclasses define this method.
        """
        raise TypeError(f"{type(self).__name__} must define forward")

    @overload
    def transform(self, rows: Tensor) -> Tensor: ...
    @overload
    def transform(self, rows: Any) -> NDArray[Any]: ...
    def transform(self, rows: Any) -> Any:
        """Apply the fitted map to rows `(n, d)`.

        Returns:
            The outputs `(n, k)`: a tensor on the same device for a tensor, else a NumPy array.

        Raises:
            NotFittedError: before `fit`.
            InputError: for vectors of other dimensions than fitted on.
        """
        return apply(self, rows)

    def primitives(self) -> "list[Map]":
        """Return simpler maps that give the same outputs when they are applied in order.

        They are affine maps, column selections and normalizations; by default the list holds only this map itself.
        `Chain.fold` multiplies neighbouring ones into one.
        """
        return [self]

    def query_map(self) -> "Map":
        """Return the map for query vectors, whose outputs are compared with this map's outputs for documents.

        By default it is this map itself.
        """
        return self

    def map_for(self, side: Side) -> "Map":
        """Return the map for queries or for documents: `query_map()` for "query", this map itself for "document"."""
        return self.query_map() if side == "query" and self.two_sided else self

    def inverse(self) -> "Map":
        """Return the map from outputs back to inputs.

        Raises:
            StepError: unless a subclass defines an inverse.
        """
        raise StepError(f"{self.kind} cannot be inverted")

    def inverse_transform(self, rows: Any) -> Any:
        """Map outputs `(n, k)` back to inputs `(n, d)` by the inverse map. A map that cannot be inverted raises.

        `inverse_kind` says how well inputs are recovered.

        Returns:
            A tensor for a tensor, else a NumPy array.

        Raises:
            StepError: if the map cannot be inverted.
            NotFittedError: before `fit`.
            InputError: for vectors of other dimensions than the outputs have.
        """
        if not self.fitted:
            raise NotFittedError("call fit before inverse_transform")
        if self.inverse_kind == "none":
            raise StepError(f"{self.kind} cannot be inverted")
        return apply(self.inverse(), rows)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yield the buffers of the map and of the modules inside it.

        A map with no modules inside yields its own buffers directly: torch's search for modules takes longer than
        applying many a map.
        """
        if self._modules:
            return super().buffers(recurse)
        return (buffer for buffer in self._buffers.values() if buffer is not None)

    @property
    def fitted(self) -> bool:
        """Whether the map can be applied: no buffer is empty.

        True for a map without buffers.
        """
        return all(buffer.numel() > 0 for buffer in self.buffers())

    @property
    def device(self) -> torch.device:
        """Device of the first buffer, on which the map is fitted and applied.

        It is the CPU for a map without buffers.
        """
        return next((buffer.device for buffer in self.buffers()), torch.device("cpu"))

    @property
    def input_dimensions(self) -> int | None:
        """Number of input dimensions, d.

        None if the map takes any number, or is not fitted. By default it is the length of the last axis of the first
        buffer that is neither empty nor a scalar.
        """
        # Weights `(k, d)` and means `(d,)` both end in d, so the order of registration does not matter.
        return next((b.shape[-1] for b in self.buffers() if b.ndim and b.numel()), None)

    def check_parameters(self) -> None:
        """Check the parameters of `__init__` by the rules in `parameter_rules`.

        Raises:
            StepError: for the first parameter whose value is not allowed, with the value and what is allowed.
        """
        for name, rule in self.parameter_rules.items():
            value = getattr(self, name)
            if (allowed := rule(value)) is not None:
                raise StepError(f"{self.kind}: {name} must be {allowed}, got {value!r}")

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the signature of the outputs (dimensions, rank, kind of codes) for inputs of the given signature.

        Subclasses define this method.

        Raises:
            StepError: if this map cannot be applied to such inputs.
        """
        raise TypeError(f"{type(self).__name__} must define output_signature")

    def infer_signature(self, inputs: Signature, refit: bool = False) -> Signature:
        """Return the signature of the outputs. Bad parameters, codes as inputs, or dimensions not fitted on raise.

        Args:
            inputs: signature of the inputs.
            refit: whether to ignore the dimensions this map was fitted on, because it will be fitted again.

        Raises:
            StepError: for a parameter out of range, for inputs that are codes, or of other dimensions than fitted on.
        """
        self.check_parameters()
        if inputs.codes is not None:
            raise StepError(f"{inputs.codes} outputs codes, which {self.kind} cannot follow: quantize once, at the end")

        fitted_on = None if refit else self.input_dimensions
        if fitted_on is not None and inputs.dimensions not in (None, fitted_on):
            raise StepError(
                f"{self.kind} was fitted on vectors of {fitted_on} dimensions and cannot follow vectors "
                f"of {inputs.dimensions}"
            )

        return self.output_signature(inputs if fitted_on is None else replace(inputs, dimensions=fitted_on))

    def spec(self) -> Spec:
        """Return the kind and the `__init__` parameters as a dict that can be serialized as JSON.

        Fitted tensors are left out.
        """
        # Parameters that are buffers, such as the weight of `Affine`, are tensors and have no JSON.
        parameters = {name: getattr(self, name) for name in parameter_names(type(self)) if name not in self._buffers}
        return {"kind": self.kind} | parameters

    def extra_repr(self) -> str:
        """Return the text for `repr`: `name=value` for each parameter that differs from its default.

        "not fitted" is appended if the map is not fitted.
        """
        defaults = {name: entry.default for name, entry in inspect.signature(type(self).__init__).parameters.items()}
        changed = {name: value for name, value in self.spec().items() if name in defaults and value != defaults[name]}
        parameters = ", ".join(f"{name}={value!r}" for name, value in changed.items())
        return parameters if self.fitted else f"{parameters}, not fitted".removeprefix(", ")


class _FittedMap(Protocol):
    """Protocol of what `apply` takes: a map or a chain of transforms."""

    @property
    def fitted(self) -> bool:
        """Whether the map can be applied: no buffer is empty."""

    @property
    def input_dimensions(self) -> int | None:
        """Number of input dimensions, or None for any."""

    def buffers(self) -> Iterator[Tensor]:
        """Yield the tensors that hold the fitted state."""

    def __call__(self, x: Tensor, **keywords: Any) -> Any:
        """Map rows `(n, d)` to outputs `(n, k)`.

        `keywords` are further arguments of the map, such as `side` of a chain.
        """


def apply(module: _FittedMap, rows: Any, require_finite: bool = False, **keywords: Any) -> Any:
    """Apply a fitted map or chain to rows `(n, d)`, without gradients. Other dimensions, or NaN for codes, raise.

    The computation uses the dtype and device of the map; a resulting tensor is moved back to the device of `rows`.

    Args:
        module: map or chain of maps.
        rows: `(n, d)`.
        require_finite: whether NaN and inf are refused, as they always are where the result is codes.
        keywords: passed on to `module`.

    Returns:
        The outputs `(n, k)`: a tensor for a tensor, else a NumPy array.

    Raises:
        NotFittedError: if the map has buffers that were never learned.
        InputError: for vectors of other dimensions than fitted on, or NaN and inf that are refused.
    """
    if not module.fitted:
        raise NotFittedError(f"{type(module).__name__} must be fitted before it is applied")

    tensor = as_tensor(rows, like=_like_tensor(module, rows))
    expected = module.input_dimensions
    if tensor.ndim == 0 or (expected is not None and tensor.shape[-1] != expected):
        raise InputError(f"vectors must have {expected} dimensions, got the shape {tuple(tensor.shape)}")

    with torch.no_grad():
        result: Tensor = module(tensor, **keywords)

    # A finite sum has only finite terms; it costs a fifth of the full check.
    if (require_finite or not result.is_floating_point()) and not tensor.sum().isfinite():
        if not torch.isfinite(tensor).all():
            raise InputError("vectors that hold NaN or inf cannot be transformed")

    return result.to(rows.device) if isinstance(rows, Tensor) else result.cpu().numpy()


def parameter_names(cls: type[nn.Module]) -> list[str]:
    """Return the names of the `__init__` parameters of a class, without `self`.

    The list is empty for a class without an `__init__` of its own.
    """
    if cls.__init__ in (nn.Module.__init__, Map.__init__):
        return []
    return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]


def _like_tensor(module: _FittedMap, rows: Any) -> Tensor:
    """Return a tensor that has the dtype and the device in which a map is computed.

    It is the map's first float buffer if there is one, else an empty tensor, with the dtype of the rows (float32 unless
    they are a float tensor) and the device of the buffers, or of the rows if there are no buffers.
    """
    # Integer buffers, such as the columns of a selection, say where to compute, but not in which dtype.
    like = next((buffer for buffer in module.buffers() if buffer.is_floating_point()), None)
    if like is not None:
        return like
    dtype = rows.dtype if isinstance(rows, Tensor) and rows.is_floating_point() else torch.float32
    device = next((buffer.device for buffer in module.buffers()), rows.device if isinstance(rows, Tensor) else None)
    return torch.empty(0, dtype=dtype, device=device)


class _TransformedView:
    """A lazy view `(n, k)` of vectors `(n, d)`: indexing reads the chosen rows and transforms them.

    Args:
        vectors: `(n, d)`, the rows before the transform.
        dimensions: k, the number of output dimensions.
        transform: function applied to the rows that are read.
    """

    def __init__(self, vectors: Vectors, dimensions: int, transform: Callable[[Any], Any]) -> None:
        self.vectors = vectors
        self.transform = transform
        self.shape = (vectors.shape[0], dimensions)

    def __getitem__(self, rows: Any, /) -> Any:
        """Read the vectors at the given index or slice, and return them transformed."""
        return self.transform(self.vectors[rows])


def view_through(vectors: Vectors, chain: RowTransform) -> Vectors:
    """Return a lazy view `(n, k)` of vectors `(n, d)`, transformed by a fitted chain of transforms.

    Rows are read and transformed only when the view is indexed.
    """
    # The owner makes the view, so that it can still compute the moments itself, where the rows are.
    if isinstance(vectors, SharedVectors):
        return vectors.view_through(chain)
    # Not `transform`: a fit names the rows with NaN and inf itself.
    transform = partial(apply, chain)  # type: ignore[arg-type]  # a chain is a `_FittedMap`, too
    return _TransformedView(vectors, chain.dimensions_after(vectors.shape[1]), transform)
