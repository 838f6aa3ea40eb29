"""Maps on row vectors that are applied, and not fitted."""

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Literal, Protocol, overload

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from transforms.base.signature import Signature
from transforms.errors import InputError, NotFittedError, StepError
from transforms.vectors import as_tensor, standardize_layout

Spec = dict[str, Any]
"""A step as JSON: `{"kind": …}` and its parameters."""

Inverse = Literal["exact", "approximate", "none"]
"""How well a map can be inverted: exactly up to rounding, to the closest input there is, or not at all."""


class Map(nn.Module):
    """A row-wise map on vectors whose state is torch buffers.

    Fitted transforms, what they fold into, and their inverses are maps. A subclass names its `kind`, registers its
    state as buffers and writes `forward`; a map that stands in a chain also writes `output_signature`.
    """

    kind: ClassVar[str]
    nested: bool = False
    """Whether every prefix of an output, brought to unit length, is usable by itself."""

    # Every buffer passes one of the next two methods: those of a fit, of an artifact, of folding, of an inverse. `.to`
    # and copies keep the layout. So what is saved, or sent to another process, computes the same bits there.
    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; give a buffer the standard memory layout."""
        if isinstance(value, Tensor) and name in self.__dict__.get("_buffers", ()):
            value = standardize_layout(value)
        super().__setattr__(name, value)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a buffer in the standard memory layout."""
        super().register_buffer(name, None if tensor is None else standardize_layout(tensor), persistent)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to rows `(n, d)`; row-wise and without side effects."""
        raise TypeError(f"{type(self).__name__} must define forward")

    @overload
    def transform(self, rows: Tensor) -> Tensor: ...
    @overload
    def transform(self, rows: Any) -> NDArray[Any]: ...
    def transform(self, rows: Any) -> Any:
        """Apply to rows `(n, d)`: return a tensor on its device for a tensor, an array for an array.

        Raises:
            NotFittedError: before `fit`.
            InputError: for vectors of other dimensions than fitted on.
        """
        return apply(self, rows)

    def primitives(self) -> "list[Map]":
        """Return the affine maps, selections and normalizations that this map consists of, in order, for folding."""
        return [self]

    @property
    def inverse_kind(self) -> Inverse:
        """How well the map can be inverted."""
        return "none"

    def inverse(self) -> "Map":
        """Return the inverse map, where `inverse_kind` is not none."""
        raise StepError(f"{self.kind} cannot be inverted")

    def inverse_transform(self, rows: Any) -> Any:
        """Invert `transform` as far as `inverse_kind` says: `(n, k)` to `(n, d)`, an array or a tensor.

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

    @property
    def fitted(self) -> bool:
        """Whether every buffer has been learned."""
        return all(buffer.numel() > 0 for buffer in self.buffers())

    @property
    def device(self) -> torch.device:
        """Device of the buffers, on which the map is fitted and applied."""
        return next((buffer.device for buffer in self.buffers()), torch.device("cpu"))

    @property
    def input_dimensions(self) -> int | None:
        """Dimensions of the inputs; None if any will do or the map is not fitted."""
        return next((b.shape[-1] for b in self.buffers() if b.ndim and b.numel()), None)

    def check_parameters(self) -> None:
        """Raise `StepError` for a parameter out of range; does nothing unless a subclass has parameters to check."""

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the signature of the outputs for inputs of a signature.

        Raises:
            StepError: if this map cannot follow such inputs.
        """
        raise TypeError(f"{type(self).__name__} must define output_signature")

    def infer_signature(self, inputs: Signature, refit: bool = False) -> Signature:
        """Check parameters and inputs, then return the signature of the outputs.

        Args:
            inputs: signature of the inputs.
            refit: whether to ignore what was fitted, because it will be fitted again.

        Raises:
            StepError: for a parameter out of range, or if this map cannot follow such inputs.
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
        """Return the kind and the parameters of this map as JSON, tensors left out."""
        given = {name: getattr(self, name) for name in parameter_names(type(self)) if name not in self._buffers}
        return {"kind": self.kind} | given

    def extra_repr(self) -> str:
        """Return the parameters for `repr`."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.spec().items() if name != "kind")
        return given if self.fitted else f"{given}, not fitted".removeprefix(", ")


class FittedMap(Protocol):
    """What `apply` needs of a map or a chain of maps."""

    @property
    def fitted(self) -> bool:
        """Whether every buffer has been learned."""

    @property
    def input_dimensions(self) -> int | None:
        """Dimensions of the inputs; None for any."""

    def buffers(self) -> Iterator[Tensor]:
        """Yield what was learned."""

    def __call__(self, x: Tensor, **keywords: Any) -> Any:
        """Apply to rows `(n, d)`."""


def apply(module: FittedMap, rows: Any, **keywords: Any) -> Any:
    """Apply a fitted map to an array or a tensor and return the same type.

    The computation uses the dtype and device of the map; the result for a tensor is moved to that tensor's device.

    Raises:
        NotFittedError: if the map has buffers that were never learned.
        InputError: for vectors of other dimensions than fitted on, or NaN and inf where the result is codes.
    """
    if not module.fitted:
        raise NotFittedError(f"{type(module).__name__} must be fitted before it is applied")
    tensor = as_tensor(rows, like=_working_tensor(module, rows))
    wanted = module.input_dimensions
    if tensor.ndim == 0 or (wanted is not None and tensor.shape[-1] != wanted):
        raise InputError(f"vectors must have {wanted} dimensions, got the shape {tuple(tensor.shape)}")
    with torch.no_grad():
        result: Tensor = module(tensor, **keywords)
    if not result.is_floating_point() and not torch.isfinite(tensor).all():  # codes cannot represent them
        raise InputError("vectors that hold NaN or inf have no codes")
    return result.to(rows.device) if isinstance(rows, Tensor) else result.cpu().numpy()


def parameter_names(cls: type[nn.Module]) -> list[str]:
    """Return the names of the parameters of a class's `__init__`; none if the class does not define one."""
    if cls.__init__ is nn.Module.__init__:
        return []
    return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]


def _working_tensor(module: FittedMap, rows: Any) -> Tensor:
    """Return a tensor of the dtype and device to compute in: those of the buffers, else those of the rows."""
    like = next((buffer for buffer in module.buffers() if buffer.is_floating_point()), None)
    if like is not None:
        return like
    dtype = rows.dtype if isinstance(rows, Tensor) and rows.is_floating_point() else torch.float32
    device = next((buffer.device for buffer in module.buffers()), rows.device if isinstance(rows, Tensor) else None)
    return torch.empty(0, dtype=dtype, device=device)
