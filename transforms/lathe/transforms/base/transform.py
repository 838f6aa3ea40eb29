"""`Transform`, the base class of all maps that are fitted to vectors, and their registry by kind.

`build_transform` makes transforms from JSON.
"""

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from lathe.transforms.base.map import Map, Signature, parameter_names
from lathe.transforms.base.query_pairs import QueryPairs
from lathe.transforms.base.training import Checkpoint, CheckpointPath, TrainingLog
from lathe.transforms.base.validation import Shape
from lathe.transforms.errors import ArtifactError, InputError, StepError
from lathe.transforms.kinds import KINDS
from lathe.transforms.progress import Progress, no_progress
from lathe.transforms.statistics import Moments, PairedMoments, PairedRows, moments_of
from lathe.transforms.suggestions import find_similar, suggest
from lathe.transforms.vectors import Vectors, as_vectors, require_matrix


@dataclass(frozen=True)
class FitContext:
    """What `fit` passes to `Transform.learn` next to the data: a progress callback, a checkpoint, queries and pairs.

    Attributes:
        report: callback called with progress in [0, 1] and a message; an exception it raises stops the fit.
        checkpoint: file for the state of long training, so that a killed fit can be resumed; None for no checkpoint.
        queries: vectors `(m, d)` that will search the fitted ones, or their moments; None if none are known.
        pairs: queries with the documents that are relevant to them; None if none are known.
    """

    report: Progress = no_progress
    checkpoint: Checkpoint | None = None
    queries: Moments | Vectors | None = None
    pairs: QueryPairs | None = None

    def query_moments(self, dimensions: int) -> Moments | None:
        """Return the moments of the fit's queries, None without queries. Queries of other dimensions raise.

        Raises:
            InputError: if the queries have other than `dimensions` dimensions.
        """
        if self.queries is None:
            return None
        moments = moments_of(self.queries)
        if moments.dimensions != dimensions:
            raise InputError(f"queries of {moments.dimensions} dimensions cannot weight vectors of {dimensions}")
        return moments


class Transform(Map):
    """A row-wise map that is fitted to vectors and keeps its fitted state in torch buffers.

    A subclass sets `kind`, stores its parameters in `__init__` as attributes of the same names, lists its fitted state
    in `shapes` and rules in `parameter_rules`, and defines `learn`, `forward` and `output_signature`.
    `.to(device)` moves it. `Chain.save` stores its buffers, in float32.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import TRANSFORMS, Transform
        >>> issubclass(TRANSFORMS["pca"], Transform)
        True
        >>> step = TRANSFORMS["pca"](dimensions=2)
        >>> step.fitted, step.fit(np.eye(4, dtype=np.float32)[:3]).fitted
        (False, True)
    """

    defined: ClassVar[dict[str, type["Transform"]]] = {}
    """Every subclass defined so far, by kind; `TRANSFORMS` adds those that are not imported yet."""

    paired: ClassVar[bool] = False
    """Whether the fit takes pairs: vectors, and the target vector that each should be mapped to."""
    takes_queries: ClassVar[bool] = False
    """Whether a fit can use vectors that will search the fitted ones."""
    takes_pairs: ClassVar[bool] = False
    """Whether the fit learns from queries and the documents that are relevant to them."""
    shapes: ClassVar[Mapping[str, Shape]] = {}
    """Shapes of the fitted buffers, as in `{"weight": ("k", "d"), "mean": ("d",)}`, which loaded tensors must have."""
    entry_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """Least and greatest entry allowed in loaded tensors, by buffer; buffers without a range may hold any number."""
    training_log: TrainingLog | None = None
    """Log of the last training; None if the fit has no training steps, or after loading."""

    def __init__(self) -> None:
        """Register an empty buffer for each of `shapes`."""
        super().__init__(**{name: torch.empty(0) for name in self.shapes})

    def __init_subclass__(cls, registered: bool = True) -> None:
        """Add the new subclass to `Transform.defined` under its kind.

        Base classes are left out by `registered=False`.
        """
        super().__init_subclass__()
        if registered:
            Transform.defined[cls.kind] = cls

    def fit(
        self,
        data: Moments | Vectors,
        on_progress: Progress = no_progress,
        targets: Vectors | None = None,
        checkpoint: CheckpointPath | None = None,
        queries: Moments | Vectors | None = None,
        pairs: QueryPairs | None = None,
    ) -> Self:
        """Fit the transform in place to vectors `(n, d)` or moments, and return it. Empty data, or NaN or inf, raise.

        Vectors are read in blocks. Buffers stay on their device. After an error they are as before.

        Args:
            data: moments or vectors, as an array, a tensor or lists of numbers; `PairedMoments` for a transform that is
                fitted on pairs.
            on_progress: callback called with progress in [0, 1] and a message; an exception it raises stops the fit.
            targets: target vector of each row, `(n, k)`, for a transform that is fitted on pairs.
            checkpoint: file for the state of a training in steps. A killed fit with the same parameters and vectors is
                resumed from it, with the same result. A `Checkpoint` also sets how often the file is written.
            queries: vectors `(m, d)` that will search the fitted ones, or their moments; used by a transform whose
                `takes_queries` is True and ignored by the others.
            pairs: queries with their relevant documents; needed by a transform whose `takes_pairs` is True and ignored
                by the others.

        Raises:
            StepError: for parameters out of range, or that make no sense for vectors with this number of dimensions.
            InputError: if the data cannot be fitted on: no rows, NaN, inf, targets or pairs missing, targets not
                expected.
        """
        self.check_parameters()
        data = self.join_pairs(as_vectors(data), targets)
        if isinstance(data, Moments):
            rows, dimensions = data.count, data.source_dimensions
        elif isinstance(data, PairedRows):
            rows, dimensions = data.shape[0], data.source_dimensions
        else:
            require_matrix(data)
            rows, dimensions = data.shape

        if rows == 0:
            raise InputError(f"{self.kind} cannot be fitted on no rows")
        if self.takes_pairs and pairs is None:
            raise InputError(f"{self.kind} is fitted on queries and their relevant documents: give pairs")

        # Called for its errors: impossible dimensions fail here, before any row is read.
        self.output_signature(Signature(dimensions))
        # Read before the fit, because `learn` may store tensors made from NumPy arrays, which are on the CPU.
        device = self.device
        context = FitContext(on_progress, None if checkpoint is None else Checkpoint.at(checkpoint), queries, pairs)

        # Overflow needs no NumPy warning: the check of the buffers reports it, inside the block, so that it restores.
        with restore_on_error([self]), np.errstate(over="ignore", invalid="ignore"):
            try:
                self.learn(data, context)
            except np.linalg.LinAlgError as error:
                raise InputError(f"{self.kind} cannot be fitted on these vectors: {error}") from error
            if not all(torch.isfinite(buffer).all() for buffer in self.buffers()):
                raise InputError(
                    f"{self.kind} cannot be fitted: the vectors hold numbers too large or too small for float32"
                )

        return self.to(device)

    def join_pairs(self, data: Moments | Vectors, targets: Vectors | None) -> Moments | Vectors:
        """Return the data as `learn` takes it: `data` itself, or `PairedMoments` with targets. Missing targets raise.

        A transform that is not `paired` takes `data` unchanged. A paired one takes the `PairedMoments` of vectors and
        targets, which may also be given as `data`.

        Raises:
            InputError: if a paired transform gets no targets, or one that is not paired gets `PairedMoments`.
        """
        if not self.paired:
            # `PairedMoments` are `Moments` of d + k dimensions, which an unpaired fit would take for vectors.
            if isinstance(data, PairedMoments):
                raise InputError(f"{self.kind} is not fitted on pairs: give the moments of the vectors alone")
            return data
        if isinstance(data, PairedMoments):
            return data
        if targets is None or isinstance(data, Moments):
            raise InputError(f"{self.kind} is fitted on pairs: give vectors and the targets they should become")

        return PairedMoments.from_pairs(data, targets)

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Learn from the data, and set the buffers in place.

        `fit` calls this method after its checks, and subclasses define it.

        Args:
            data: the moments, or the vectors `(n, d)`, as `join_pairs` returns them.
            context: progress callback, checkpoint, queries and pairs of the fit.
        """
        raise TypeError(f"{type(self).__name__} must define learn")

    @property
    def learned_directions(self) -> int:
        """Number of output directions fitted from data, 0 by default.

        Certificates warn if there are fewer than ten rows for each.
        """
        return 0

    def chosen_parameters(self) -> dict[str, float]:
        """Return the values that the fit derived from the data for parameters that were left open, by name.

        The dict is empty by default, and becomes part of the certificate.
        """
        return {}

    def fit_warnings(self) -> list[str]:
        """Return sentences about what makes this fit less reliable.

        The list is empty by default.
        """
        return []

    def restore(self, tensors: Mapping[str, Tensor]) -> Self:
        """Set the fitted buffers from an artifact's tensors, and return the transform. Unknown or bad tensors raise.

        Raises:
            ArtifactError: if a tensor is missing or unknown, or has a dtype, shape or entries that no fit gives.
        """
        buffers = dict(self.named_buffers())
        if set(tensors) != set(buffers):
            raise ArtifactError(f"{self.kind} needs the tensors {sorted(buffers)}, the artifact has {sorted(tensors)}")

        for name, tensor in tensors.items():
            dtype = buffers[name].dtype
            if tensor.dtype != dtype:
                raise ArtifactError(
                    f"the tensor {name!r} of {self.kind} is of dtype {tensor.dtype}; it must be {dtype}"
                )
            if not torch.isfinite(tensor).all():
                raise ArtifactError(f"the tensor {name!r} of {self.kind} is not finite")

        for name, tensor in tensors.items():
            _set_buffer(self, name, tensor)
        self.check_tensors()
        return self

    def check_tensors(self) -> None:
        """Raise `ArtifactError` unless loaded buffers have the shapes in `shapes` and entries within `entry_ranges`.

        An axis that several shapes name must have one length. A subclass may check more. An artifact may come from
        somebody else: its digests are then right, and its tensors may hold anything.

        Raises:
            ArtifactError: if a buffer has another shape, or holds an entry that no fit gives.
        """
        buffers, lengths = dict(self.named_buffers()), dict[str, int]()
        for name, axes in self.shapes.items():
            if name not in buffers:
                continue

            shape = tuple(buffers[name].shape)
            # An axis that several buffers name has one length, which the first of them sets.
            fits = len(shape) == len(axes) and all(
                0 < length == (axis if isinstance(axis, int) else lengths.setdefault(axis, length))
                for axis, length in zip(axes, shape, strict=True)
            )
            if not fits:
                expected = ", ".join(str(lengths.get(axis, axis) if isinstance(axis, str) else axis) for axis in axes)
                raise ArtifactError(
                    f"the tensor {name!r} of {self.kind} has the shape {shape}; it must be ({expected})"
                )

        for name, (low, high) in self.entry_ranges.items():
            self._check_entries(name, buffers[name], low, high)

    def _check_entries(self, name: str, tensor: Tensor, low: float, high: float) -> None:
        """Check that all entries of the buffer `name`, or of the part of it in `tensor`, lie from `low` to `high`.

        Raises:
            ArtifactError: with the first entry that does not.
        """
        outside = (tensor < low) | (tensor > high)
        if outside.any():
            entry = tensor[outside].flatten()[0].item()
            raise ArtifactError(
                f"the tensor {name!r} of {self.kind} holds {entry:g}; it must be from {low:g} to {high:g}"
            )


@contextmanager
def restore_on_error(steps: Sequence[Map]) -> Iterator[None]:
    """Restore the original buffers of all steps if the block raises, and raise the error again.

    Changes within a buffer's tensor are not undone.
    """
    # References suffice: a fit assigns new tensors to its buffers and does not write into the old ones.
    earlier = [dict(step.named_buffers()) for step in steps]
    try:
        yield
    # Not only `Exception`: Ctrl-C in the middle of a fit must not leave half of it either.
    except BaseException:
        for step, buffers in zip(steps, earlier, strict=True):
            for name, buffer in buffers.items():
                _set_buffer(step, name, buffer)
        raise


def _set_buffer(step: Map, name: str, tensor: Tensor) -> None:
    """Assign a tensor to the buffer with a dotted name, such as `steps.0.mean`.

    The first parts of the name are modules inside the step.
    """
    owner, _, leaf = name.rpartition(".")
    setattr(step.get_submodule(owner), leaf, tensor)


class _TransformRegistry(Mapping[str, type[Transform]]):
    """Read-only mapping from kind to transform class: Lathe's own, and every subclass of `Transform` defined so far.

    Lathe's own classes are imported on first access.
    """

    def __getitem__(self, kind: str) -> type[Transform]:
        """Return the transform class of a kind.

        The class's module is imported if needed.

        Raises:
            KeyError: for an unknown kind.
        """
        if kind not in Transform.defined and kind in KINDS:
            # The import alone fills `Transform.defined`: a subclass registers itself when it is defined.
            importlib.import_module(KINDS[kind])
        return Transform.defined[kind]

    def __iter__(self) -> Iterator[str]:
        """Yield all kinds in sorted order, importing nothing."""
        return iter(sorted({*KINDS, *Transform.defined}))

    def __len__(self) -> int:
        """Return the number of kinds."""
        return len({*KINDS, *Transform.defined})


TRANSFORMS = _TransformRegistry()
"""The registry of all transform classes, by kind."""


def build_transform(spec: Mapping[str, Any]) -> Transform:
    """Build an unfitted transform from a spec such as `{"kind": "pca", "dimensions": 128}`. Unknown parameters raise.

    Raises:
        StepError: for an unknown kind or parameter, or a value out of range.
    """
    if not isinstance(spec, Mapping):
        raise StepError(f"a step is an object such as {{'kind': 'r2'}}, got {spec!r}")

    kind = spec.get("kind")
    if not isinstance(kind, str) or kind not in TRANSFORMS:
        raise StepError(f"unknown kind of step {kind!r}; {suggest(str(kind), TRANSFORMS)}")

    cls = TRANSFORMS[kind]
    known = parameter_names(cls)
    parameters = {name: value for name, value in spec.items() if name != "kind"}
    # Checked before the call, because the TypeError of `cls(**parameters)` does not say what a step takes.
    if unknown := sorted(set(parameters) - set(known)):
        similar = find_similar(unknown[0], known)
        takes = f"it takes {', '.join(known)}" if known else "it takes none"
        advice = f"did you mean {similar}? {takes.capitalize()}" if similar else takes
        raise StepError(f"{kind} has no parameter {', '.join(map(repr, unknown))}; {advice}")
    defaults = {name: inspect.signature(cls.__init__).parameters[name].default for name in known}
    if missing := [name for name in known if defaults[name] is inspect.Parameter.empty and name not in parameters]:
        raise StepError(f"{kind} needs {', '.join(missing)}, as in {kind}:128")

    transform = cls(**parameters)
    transform.check_parameters()
    return transform
