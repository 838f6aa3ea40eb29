"""What every transform is: a fitted, row-wise map on vectors, known by its kind."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, Self, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from transforms.base.checkpoint import Checkpoint, Place
from transforms.base.signature import Outline
from transforms.base.training_log import Record
from transforms.errors import ArtifactError, InputError, NotFittedError, StepError
from transforms.statistics.moments import Moments
from transforms.statistics.paired_moments import PairedMoments
from transforms.vectors import Vectors, as_tensor, require_matrix, standardize_layout

Spec = dict[str, Any]
"""A step as JSON: `{"kind": …}` and its parameters."""

Inverse = Literal["exact", "approximate", "none"]
"""How well a transform can be undone."""

Learning = Literal["rows", "moments", "unit moments", "nothing"]
"""What a fit needs: the rows, their moments, the moments of the rows at unit length, or only their width."""

Progress = Callable[[float, str], None]
"""Called with a fraction of the work in 0…1 and a sentence about it."""

TRANSFORMS: dict[str, type["Transform"]] = {}
"""Every transform by its kind, filled as the classes are defined: complete once `transforms.catalogue` is imported."""


def no_progress(_fraction: float, _message: str) -> None:
    """Report to nobody."""


def part_of(on_progress: Progress, start: float, end: float) -> Progress:
    """Progress of a part of the work, from one fraction of the whole to another, as progress of the whole."""

    def report(fraction: float, message: str) -> None:
        on_progress(start + (end - start) * fraction, message)

    return report


@dataclass(frozen=True)
class Run:
    """A fit under way.

    Attributes:
        report: told a fraction and a sentence; what it raises stops the fit.
        checkpoint: a file to keep the state of long work in, so that a killed fit can go on; None for none.
    """

    report: Progress = no_progress
    checkpoint: Checkpoint | None = None


class RowMap(Protocol):
    """What can be applied to rows: a transform, a chain of them."""

    @property
    def fitted(self) -> bool:
        """Whether everything was learned."""

    @property
    def input_dimensions(self) -> int | None:
        """The width it takes; None for any."""

    def buffers(self) -> Iterator[Tensor]:
        """What was learned."""

    def __call__(self, x: Tensor, **keywords: Any) -> Any:
        """Apply to `(n, d)`."""


class Transform(nn.Module):
    """A map on row vectors whose fitted state is torch buffers.

    A subclass names its `kind`, stores its parameters in `__init__` under their own names,
    registers what it learns as empty buffers, and writes `learn`, `forward` and `after`.
    One `.to(device)` moves it; its buffers are what `Chain.save` keeps, in float32.
    """

    kind: ClassVar[str]
    paired: ClassVar[bool] = False
    """Whether it is fitted on pairs: vectors, and the targets they should become."""
    learns_from: Learning = "rows"
    """Of moments, those that give the same fit as the rows they are of."""
    record: Record | None = None
    """What happened in training; None where nothing was trained in steps, or after loading."""

    def __init_subclass__(cls, registered: bool = True) -> None:
        super().__init_subclass__()
        if registered:
            TRANSFORMS[cls.kind] = cls

    # Every buffer passes one of the next two: those of a fit, of an artifact, of folding, of the way back. `.to` and
    # copies keep the layout. So what is saved, or sent to another process, computes the same bits there.
    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; a buffer is kept in standard layout."""
        if isinstance(value, Tensor) and name in self.__dict__.get("_buffers", ()):
            value = standardize_layout(value)
        super().__setattr__(name, value)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a buffer, kept in standard layout."""
        super().register_buffer(name, None if tensor is None else standardize_layout(tensor), persistent)

    def fit(
        self,
        data: Moments | Vectors,
        on_progress: Progress = no_progress,
        targets: Vectors | None = None,
        checkpoint: Place | None = None,
    ) -> Self:
        """Learn from moments, or from vectors `(n, d)` which are streamed, on the device it is on.

        Args:
            data: moments or vectors; `PairedMoments` where it is fitted on pairs.
            on_progress: told a fraction and a sentence; what it raises stops the fit, and leaves
                everything as it was.
            targets: for each row what it should become, `(n, k)`, where it is fitted on pairs.
            checkpoint: a file for the state of what is trained in steps. A killed fit with the
                same parameters and vectors goes on from there, and ends as if never stopped. A
                `Checkpoint` also says how often it is written.

        Raises:
            InputError: if the data cannot be fitted on (no rows, NaN, inf, pairs that are none).
            StepError: if the parameters make no sense for vectors of that width.
        """
        if self.paired and not isinstance(data, PairedMoments):
            if targets is None or isinstance(data, Moments):
                raise InputError(f"{self.kind} is fitted on pairs: give vectors and the targets they should become")
            data = PairedMoments.from_pairs(data, targets)
        if isinstance(data, PairedMoments) and not self.paired:
            raise InputError(f"{self.kind} is not fitted on pairs: give the moments of the vectors alone")
        if isinstance(data, Moments):
            rows, width = data.count, data.source_dimensions
        else:
            require_matrix(data)
            rows, width = data.shape
        if rows == 0:
            raise InputError(f"{self.kind} cannot be fitted on no rows")
        self.after(Outline(width))
        device = self.device
        with unchanged_on_error([self]), np.errstate(over="ignore", invalid="ignore"):
            try:
                self.learn(data, Run(on_progress, None if checkpoint is None else Checkpoint.at(checkpoint)))
            except np.linalg.LinAlgError as error:
                raise InputError(f"{self.kind} cannot be fitted on these vectors: {error}") from error
            if not all(torch.isfinite(buffer).all() for buffer in self.buffers()):
                raise InputError(
                    f"{self.kind} cannot be fitted: the vectors hold numbers too large or too small for float32"
                )
        return self.to(device)

    @property
    def device(self) -> torch.device:
        """Where its buffers are, and where it is fitted."""
        return next((buffer.device for buffer in self.buffers()), torch.device("cpu"))

    def learn(self, data: Moments | Vectors, run: Run) -> None:
        """Set the buffers; called by `fit` after its checks."""
        raise TypeError(f"{type(self).__name__} does not say what it learns")

    def after(self, before: Outline) -> Outline:
        """What is known of the outputs, from what is known of the inputs.

        Raises:
            StepError: if this step cannot follow such vectors.
        """
        raise TypeError(f"{type(self).__name__} does not say what its outputs are")

    def follow(self, before: Outline, refit: bool = False) -> Outline:
        """`after`, checked against what was fitted unless it is to be fitted anew.

        Raises:
            StepError: if this step cannot follow such vectors.
        """
        if before.codes is not None:
            raise StepError(f"{before.codes} gives codes, which {self.kind} cannot follow: quantise last, and once")
        mine = None if refit else self.input_dimensions
        if mine is not None and before.width not in (None, mine):
            raise StepError(f"{self.kind} was fitted on vectors {mine} wide and cannot follow ones {before.width} wide")
        return self.after(before if mine is None else replace(before, width=mine))

    def forward(self, x: Tensor) -> Tensor:
        """Apply to rows `(n, d)`; row-wise and pure."""
        raise TypeError(f"{type(self).__name__} does not say how it is applied")

    def primitives(self) -> list["Transform"]:
        """The affine maps and normalisations this transform consists of, for folding."""
        return [self]

    @property
    def inverse_kind(self) -> Inverse:
        """How well it can be undone: exact (to rounding), approximate (the closest there is), or none."""
        return "none"

    def inverse(self) -> "Transform":
        """The way back, where `inverse_kind` is not none."""
        raise StepError(f"{self.kind} cannot be undone")

    def inverse_transform(self, rows: Any) -> Any:
        """Undo `transform`, as far as `inverse_kind` says: `(n, k)` to `(n, d)`, an array or a tensor.

        Raises:
            StepError: if it cannot be undone.
            NotFittedError: before `fit`.
            InputError: for vectors of another width than it gives.
        """
        if not self.fitted:
            raise NotFittedError("fit comes before inverse_transform")
        if self.inverse_kind == "none":
            raise StepError(f"{self.kind} cannot be undone")
        return apply(self.inverse(), rows)

    @overload
    def transform(self, rows: Tensor) -> Tensor: ...
    @overload
    def transform(self, rows: Any) -> NDArray[Any]: ...
    def transform(self, rows: Any) -> Any:
        """Apply to a tensor `(n, d)` (out comes a tensor on its device) or an array (an array).

        Raises:
            NotFittedError: before `fit`.
            InputError: for vectors of another width than fitted on.
        """
        return apply(self, rows)

    @property
    def learned_directions(self) -> int:
        """How many directions were learned from rows, which should be ten times as many; 0 where rows hardly matter."""
        return 0

    @property
    def fitted(self) -> bool:
        """Whether every buffer has been learned."""
        return all(buffer.numel() > 0 for buffer in self.buffers())

    @property
    def input_dimensions(self) -> int | None:
        """The width it was fitted on; None if any width will do or it is not fitted."""
        return next((b.shape[-1] for b in self.buffers() if b.ndim and b.numel()), None)

    def spec(self) -> Spec:
        """This step as JSON: its kind and the parameters it was made with, tensors left out."""
        given = {name: getattr(self, name) for name in parameter_names(type(self)) if name not in self._buffers}
        return {"kind": self.kind} | given

    def extra_repr(self) -> str:
        """What it was made with, for `repr`."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.spec().items() if name != "kind")
        return given if self.fitted else f"{given}, not fitted".removeprefix(", ")

    def restore(self, tensors: Mapping[str, Tensor]) -> Self:
        """Set the fitted buffers from saved tensors.

        Raises:
            ArtifactError: if a tensor is missing, unknown or not finite.
        """
        expected = set(dict(self.named_buffers()))
        if set(tensors) != expected:
            raise ArtifactError(f"{self.kind} wants the tensors {sorted(expected)}, the artifact has {sorted(tensors)}")
        for name, tensor in tensors.items():
            if not torch.isfinite(tensor).all():
                raise ArtifactError(f"the tensor {name!r} of {self.kind} is not finite")
            setattr(self, name, tensor)
        return self


@contextmanager
def unchanged_on_error(steps: Sequence[Transform]) -> Iterator[None]:
    """Give the steps back what they had learned before if the block fails."""
    earlier = [dict(step.named_buffers()) for step in steps]
    try:
        yield
    except BaseException:
        for step, buffers in zip(steps, earlier, strict=True):
            for name, buffer in buffers.items():
                setattr(step, name, buffer)
        raise


def build(spec: Mapping[str, Any]) -> Transform:
    """Make an unfitted transform from its JSON, `{"kind": …, parameters}`.

    Raises:
        StepError: for an unknown kind or parameter, or a value out of range.
    """
    if not isinstance(spec, Mapping):
        raise StepError(f"a step is an object such as {{'kind': 'r2'}}, got {spec!r}")
    kind = spec.get("kind")
    if not isinstance(kind, str) or kind not in TRANSFORMS:
        raise StepError(f"unknown kind of step {kind!r}; there are {', '.join(sorted(TRANSFORMS))}")
    cls = TRANSFORMS[kind]
    known = parameter_names(cls)
    parameters = {name: value for name, value in spec.items() if name != "kind"}
    if unknown := sorted(set(parameters) - set(known)):
        takes = f"it takes {', '.join(known)}" if known else "it takes none"
        raise StepError(f"{kind} has no parameter {', '.join(map(repr, unknown))}; {takes}")
    if missing := [name for name in required_parameters(cls) if name not in parameters]:
        raise StepError(f"{kind} needs {', '.join(missing)}, as in {kind}:128")
    return cls(**parameters)


def required_parameters(cls: type[Transform]) -> list[str]:
    """What it cannot be made without."""
    given = inspect.signature(cls.__init__).parameters
    return [name for name in parameter_names(cls) if given[name].default is inspect.Parameter.empty]


def parameter_names(cls: type[Transform]) -> list[str]:
    """What a transform is made with; none for one without an `__init__` of its own."""
    if cls.__init__ is nn.Module.__init__:
        return []
    return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]


def apply(module: RowMap, rows: Any, **keywords: Any) -> Any:
    """Run a fitted module on an array or a tensor, giving back the same sort of thing.

    It computes in the module's dtype and on its device; a tensor's answer goes back to the
    tensor's device.

    Raises:
        NotFittedError: if the module has buffers that were never learned.
        InputError: for vectors of another width than fitted on.
    """
    if not module.fitted:
        raise NotFittedError(f"{type(module).__name__} must be fitted before it is applied")
    tensor = as_tensor(rows, like=working_like(module, rows))
    wanted = module.input_dimensions
    if tensor.ndim == 0 or (wanted is not None and tensor.shape[-1] != wanted):
        raise InputError(f"vectors must be {wanted} wide, got the shape {tuple(tensor.shape)}")
    with torch.no_grad():
        result: Tensor = module(tensor, **keywords)
    if not result.is_floating_point() and not torch.isfinite(tensor).all():  # a code cannot say so
        raise InputError("vectors that hold NaN or inf have no codes")
    return result.to(rows.device) if isinstance(rows, Tensor) else result.cpu().numpy()


def working_like(module: RowMap, rows: Any) -> Tensor:
    """A tensor of the dtype and device to compute in: of what was learned, else of the rows."""
    like = next((buffer for buffer in module.buffers() if buffer.is_floating_point()), None)
    if like is not None:
        return like
    dtype = rows.dtype if isinstance(rows, Tensor) and rows.is_floating_point() else torch.float32
    device = next((buffer.device for buffer in module.buffers()), rows.device if isinstance(rows, Tensor) else None)
    return torch.empty(0, dtype=dtype, device=device)
