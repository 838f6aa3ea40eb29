"""The contract of every transform: a map on vectors that is fitted, known by its kind."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from transforms.base.checkpoint import Checkpoint, CheckpointPath
from transforms.base.map import Map
from transforms.base.signature import Signature
from transforms.base.training_log import TrainingLog
from transforms.errors import ArtifactError, InputError
from transforms.progress import Progress, no_progress
from transforms.statistics import Moments, PairedMoments
from transforms.vectors import Vectors, require_matrix

LearnsFrom = Literal["rows", "moments", "unit moments", "nothing"]
"""What a fit needs: the rows, their moments, the moments of the rows at unit length, or only their dimensions."""


@dataclass(frozen=True)
class FitContext:
    """What a transform's `learn` may use besides the data.

    Attributes:
        report: called with progress in [0, 1] and a message; an exception that it raises stops the fit.
        checkpoint: file for the state of long training, so that a killed fit can be resumed; None for no checkpoint.
    """

    report: Progress = no_progress
    checkpoint: Checkpoint | None = None


class Transform(Map):
    """A map on row vectors that is fitted, and whose fitted state is torch buffers.

    A subclass names its `kind`, stores its parameters in `__init__` under their own names, registers what it learns as
    empty buffers, and writes `check_parameters`, `learn`, `forward` and `output_signature`. `.to(device)` moves it;
    its buffers are what `Chain.save` stores, in float32.
    """

    defined: ClassVar[dict[str, type["Transform"]]] = {}
    """Every subclass defined so far, by kind; see `transforms.base.registry` for those that are not imported yet."""

    paired: ClassVar[bool] = False
    """Whether the fit takes pairs: vectors, and the targets that they should become."""
    normalizes_rows: ClassVar[bool] = False
    """Whether fitting and applying bring rows to unit length first, or give the same result as if they did."""
    learns_from: LearnsFrom = "rows"
    """The least that gives the same fit as the rows."""
    training_log: TrainingLog | None = None
    """What happened in training; None where nothing was trained in steps, or after loading."""

    def __init_subclass__(cls, registered: bool = True) -> None:
        super().__init_subclass__()
        if registered:
            Transform.defined[cls.kind] = cls

    def fit(
        self,
        data: Moments | Vectors,
        on_progress: Progress = no_progress,
        targets: Vectors | None = None,
        checkpoint: CheckpointPath | None = None,
    ) -> Self:
        """Learn from moments, or from vectors `(n, d)` that are streamed, on the device of the buffers.

        After an error every buffer is as it was before.

        Args:
            data: moments or vectors; `PairedMoments` for a transform that is fitted on pairs.
            on_progress: called with progress in [0, 1] and a message; an exception that it raises stops the fit.
            targets: what each row should become, `(n, k)`, for a transform that is fitted on pairs.
            checkpoint: file for the state of a training in steps. A killed fit with the same parameters and vectors is
                resumed from there, with the same result. A `Checkpoint` also says how often the file is written.

        Raises:
            StepError: for parameters out of range, or that make no sense for vectors of those dimensions.
            InputError: if the data cannot be fitted on: no rows, NaN, inf, targets missing or not expected.
        """
        self.check_parameters()
        if self.paired and not isinstance(data, PairedMoments):
            if targets is None or isinstance(data, Moments):
                raise InputError(f"{self.kind} is fitted on pairs: give vectors and the targets they should become")
            data = PairedMoments.from_pairs(data, targets)
        if isinstance(data, PairedMoments) and not self.paired:
            raise InputError(f"{self.kind} is not fitted on pairs: give the moments of the vectors alone")
        if isinstance(data, Moments):
            rows, dimensions = data.count, data.source_dimensions
        else:
            require_matrix(data)
            rows, dimensions = data.shape
        if rows == 0:
            raise InputError(f"{self.kind} cannot be fitted on no rows")
        self.output_signature(Signature(dimensions))
        device = self.device
        with restore_on_error([self]), np.errstate(over="ignore", invalid="ignore"):
            try:
                self.learn(data, FitContext(on_progress, None if checkpoint is None else Checkpoint.at(checkpoint)))
            except np.linalg.LinAlgError as error:
                raise InputError(f"{self.kind} cannot be fitted on these vectors: {error}") from error
            if not all(torch.isfinite(buffer).all() for buffer in self.buffers()):
                raise InputError(
                    f"{self.kind} cannot be fitted: the vectors hold numbers too large or too small for float32"
                )
        return self.to(device)

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Set the buffers from the data; called by `fit` after its checks."""
        raise TypeError(f"{type(self).__name__} must define learn")

    @property
    def learned_directions(self) -> int:
        """Number of directions learned from rows, ten times as many of which should be given; 0 if few suffice."""
        return 0

    @property
    def chooses_axes(self) -> bool:
        """Whether the outputs are coordinates along directions found in the data, so that another fit changes them."""
        return False

    @property
    def needs_higher_moments(self) -> bool:
        """Whether the fit uses third or fourth moments, which cannot be propagated through an affine map."""
        return False

    def fit_warnings(self) -> list[str]:
        """Return what makes this fit less reliable, as sentences."""
        return []

    def restore(self, tensors: Mapping[str, Tensor]) -> Self:
        """Set the fitted buffers from saved tensors.

        Raises:
            ArtifactError: if a tensor is missing, unknown or not finite.
        """
        expected = set(dict(self.named_buffers()))
        if set(tensors) != expected:
            raise ArtifactError(f"{self.kind} needs the tensors {sorted(expected)}, the artifact has {sorted(tensors)}")
        for name, tensor in tensors.items():
            if not torch.isfinite(tensor).all():
                raise ArtifactError(f"the tensor {name!r} of {self.kind} is not finite")
            setattr(self, name, tensor)
        return self


@contextmanager
def restore_on_error(steps: Sequence[Map]) -> Iterator[None]:
    """Restore the buffers of the steps if the block raises."""
    earlier = [dict(step.named_buffers()) for step in steps]
    try:
        yield
    except BaseException:
        for step, buffers in zip(steps, earlier, strict=True):
            for name, buffer in buffers.items():
                setattr(step, name, buffer)
        raise
