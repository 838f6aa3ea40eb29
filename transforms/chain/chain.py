"""An ordered list of fitted transforms, applied as one."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Self, overload

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from transforms.artifact import FitStatistics, Manifest, display_name, read_artifact, write_artifact
from transforms.base import (
    TRANSFORMS,
    Checkpoint,
    CheckpointPath,
    Inverse,
    Map,
    Signature,
    Spec,
    Transform,
    apply,
    restore_on_error,
    view_through,
)
from transforms.chain.folding import fold_primitives
from transforms.chain.steps import build_steps
from transforms.codes import Quantizer
from transforms.errors import ArtifactError, InputError, NotFittedError, StepError
from transforms.linear import Normalize, Selection
from transforms.progress import Progress, no_progress
from transforms.statistics import unit_rows
from transforms.vectors import Vectors, require_matrix


class Chain(nn.Module):
    """Transforms applied in order, and a final L2 normalization unless `normalize` is off.

    A quantizer, which must be the last step, comes after that normalization. Chains are composed by `chain + step` or
    `chain + chain`, sliced, and equal (`==`) if they are the same map: the same steps with the same fitted tensors.

    Attributes:
        steps: the transforms; in a folded chain also affine maps.
        normalize: whether outputs are normalized.
        metadata: what else the manifest of its artifact says: encoder, provenance, certificate.
    """

    def __init__(self, steps: Iterable[Map], normalize: bool = True) -> None:
        """Compose the steps.

        Raises:
            StepError: if a step cannot follow the steps before it, with the reason.
        """
        super().__init__()
        steps = list(steps) if isinstance(steps, Iterable) else [steps]
        for step in steps:
            if not isinstance(step, Map):
                raise StepError(f"a chain is made of transforms such as R2(), not {step!r}; parse_steps reads text")
        self.steps = nn.ModuleList(steps)
        self.normalize = normalize
        self.metadata: Manifest = {}
        self.signature()

    @property
    def transforms(self) -> list[Map]:
        """Steps as a typed list."""
        return [step for step in self.steps if isinstance(step, Map)]

    @property
    def quantizer(self) -> Quantizer | None:
        """Last step, if it outputs codes."""
        last = self.steps[-1] if len(self.steps) else None
        return last if isinstance(last, Quantizer) else None

    @property
    def float_steps(self) -> list[Map]:
        """Steps before the quantizer."""
        return [step for step in self.transforms if not isinstance(step, Quantizer)]

    def signature(
        self, dimensions: int | None = None, refit: bool = False, target_dimensions: int | None = None
    ) -> Signature:
        """Return what is known of the outputs for inputs of so many dimensions, before any input is seen.

        Args:
            dimensions: of the inputs; None while unknown.
            refit: whether to ignore what was fitted, because it will be fitted again.
            target_dimensions: of the targets, where steps are to be fitted on pairs.

        Raises:
            StepError: naming the first step that cannot follow the steps before it, with the reason.
        """
        signature = Signature(dimensions, target_dimensions=target_dimensions)
        for step in self.transforms:
            signature = step.infer_signature(signature, refit)
        return signature

    def dimensions_after(self, dimensions: int) -> int:
        """Return the dimensions of the outputs for inputs of so many dimensions.

        Raises:
            StepError: naming the first step that cannot follow the steps before it.
            NotFittedError: if they are known only after the fit.
        """
        outputs = self.signature(dimensions).dimensions
        if outputs is None:
            raise NotFittedError("the dimensions of the targets are not known before the fit")
        return outputs

    def fit(
        self,
        vectors: Vectors,
        on_progress: Progress = no_progress,
        targets: Vectors | None = None,
        refit: bool = True,
        checkpoints: CheckpointPath | None = None,
    ) -> Self:
        """Fit every step on the outputs of the steps before it, streaming the vectors from where they are stored.

        After an error every step is as it was before.

        Args:
            vectors: `(n, d)`.
            on_progress: called with progress in [0, 1] and a message; an exception that it raises stops the fit.
            targets: what each row should become, `(n, k)`, for steps that are fitted on pairs.
            refit: whether to fit again the steps that are fitted already.
            checkpoints: folder for the state of steps that are trained; see `Transform.fit`.

        Raises:
            InputError: for no rows, vectors a step cannot learn from (NaN and inf among them), or missing targets.
            StepError: if the steps do not fit the dimensions or one another, or the chain is folded.
        """
        require_matrix(vectors)
        to_fit = self._steps_to_fit(refit)
        paired = [step.kind for step in to_fit.values() if step.paired]
        if targets is None and paired:
            raise InputError(f"{paired[0]} is fitted on pairs: give targets, what each vector should become")
        if targets is not None and not paired:
            raise InputError("no step is fitted on targets; procrustes and low_rank_affine are")
        self.signature(vectors.shape[1], refit, None if targets is None else targets.shape[1])
        with restore_on_error(self.transforms):
            for index, step in to_fit.items():
                name = f"{index}-{step.kind}.safetensors"
                checkpoint = None if checkpoints is None else Checkpoint.at(checkpoints).in_folder(name)
                self.fit_step(index, vectors, on_progress, targets, checkpoint)
        on_progress(1.0, "fitted")
        return self

    def _steps_to_fit(self, refit: bool) -> dict[int, Transform]:
        """Return the steps to fit by position: all, or those that are not fitted yet.

        Raises:
            StepError: if one of them can only be applied, as in a folded chain.
        """
        found = {}
        for index, step in enumerate(self.transforms):
            if refit or not step.fitted:
                if not isinstance(step, Transform):
                    raise StepError(
                        f"{step.kind} comes from folding and cannot be fitted; fit the chain it was folded from"
                    )
                found[index] = step
        return found

    def fit_step(
        self,
        index: int,
        vectors: Vectors,
        on_progress: Progress = no_progress,
        targets: Vectors | None = None,
        checkpoint: CheckpointPath | None = None,
    ) -> None:
        """Fit one step on the vectors as the steps before it, fitted already, transform them; see `fit`."""

        def report(fraction: float, message: str) -> None:
            on_progress((index + fraction) / len(self.steps), message)

        step = self.transforms[index]
        assert isinstance(step, Transform)
        report(0.0, f"fitting {step.kind}")
        before = Chain(self.transforms[:index], self.normalize and isinstance(step, Quantizer))
        if len(before) or before.normalize:  # the first step learns from the vectors in the precision they come in
            vectors = view_through(vectors, before)
        step.fit(vectors, report, targets, checkpoint)

    def forward(self, x: Tensor, dimensions: int | None = None) -> Tensor:
        """Apply to rows `(n, d)`; see `transform`."""
        quantizer = None
        for step in self.steps:
            if isinstance(step, Quantizer):
                quantizer = step
            else:
                x = step(x)
        x = x if dimensions is None else x[..., :dimensions]
        x = unit_rows(x) if self.normalize else x
        return x if quantizer is None else quantizer(x)

    @overload
    def transform(self, rows: Tensor, dimensions: int | None = None) -> Tensor: ...
    @overload
    def transform(self, rows: Any, dimensions: int | None = None) -> NDArray[Any]: ...
    def transform(self, rows: Any, dimensions: int | None = None) -> Any:
        """Apply to rows `(n, d)`: return a tensor on its device for a tensor, an array for an array.

        A chain that ends in a quantizer outputs codes; see `dequantize`.

        Args:
            rows: the vectors.
            dimensions: number of leading dimensions to output, where the chain is nested.

        Raises:
            NotFittedError: before `fit`.
            InputError: for vectors of other dimensions than fitted on, or output dimensions that it does not serve.
        """
        self.require_dimensions(dimensions)
        return apply(self, rows, dimensions=dimensions)

    def floats(self, rows: Any, dimensions: int | None = None) -> Any:
        """Apply like `transform`, and decode codes to the floats they stand for."""
        return self.dequantize(self.transform(rows, dimensions))

    def dequantize(self, codes: Any) -> Any:
        """Decode codes to the floats `(n, k)` they stand for; return the outputs as they are without a quantizer."""
        return codes if self.quantizer is None else self.quantizer.inverse_transform(codes)

    @property
    def inverse_kind(self) -> Inverse:
        """How well the chain can be inverted: no better than its worst step; none if it normalizes."""
        kinds = {step.inverse_kind for step in self.transforms} | {"none" if self.normalize else "exact"}
        return "none" if "none" in kinds else "approximate" if "approximate" in kinds else "exact"

    def inverse_transform(self, rows: Any) -> Any:
        """Invert `transform` as far as `inverse_kind` says: `(n, k)` to `(n, d)`, an array or a tensor.

        Raises:
            StepError: if the chain cannot be inverted.
            NotFittedError: before `fit`.
            InputError: for vectors of other dimensions than the outputs have.
        """
        if self.inverse_kind == "none":
            raise StepError("this chain cannot be inverted: one of its steps, or its normalization, cannot")
        for step in reversed(self.transforms):
            rows = step.inverse_transform(rows)
        return rows

    @property
    def fitted(self) -> bool:
        """Whether every step is fitted."""
        return all(step.fitted for step in self.transforms)

    @property
    def input_dimensions(self) -> int | None:
        """Dimensions of the inputs; None if any will do."""
        return next((step.input_dimensions for step in self.transforms if step.input_dimensions), None)

    @property
    def output_dimensions(self) -> int | None:
        """Dimensions of the outputs; None if they depend on the input."""
        return None if self.input_dimensions is None else self.dimensions_after(self.input_dimensions)

    @property
    def bytes_per_vector(self) -> int | None:
        """Bytes of an output: 4 per dimension as floats, 1 or an eighth as codes."""
        width = self.output_dimensions
        bits = 32 if self.quantizer is None else self.quantizer.bits
        return None if width is None else -(-width * bits // 8)

    @property
    def nested(self) -> bool:
        """Whether every prefix of an output, brought to unit length, is usable by itself."""
        last = next((step for step in reversed(self.transforms) if not isinstance(step, Normalize)), None)
        return last is not None and bool(last.nested)

    def serves(self, dimensions: int) -> bool:
        """Return whether the chain can output so many dimensions."""
        full = self.output_dimensions
        return full is not None and (dimensions == full or (self.nested and 1 <= dimensions < full))

    def describe_dimensions(self) -> str:
        """Return the output dimensions that the chain serves as words for a message."""
        return f"any number up to {self.output_dimensions}" if self.nested else f"only {self.output_dimensions}"

    def require_dimensions(self, dimensions: int | None) -> None:
        """Raise `InputError` unless the chain can output so many dimensions; None stands for all."""
        if dimensions is not None and (not isinstance(dimensions, int) or not self.serves(dimensions)):
            raise InputError(f"this chain serves {self.describe_dimensions()} dimensions, not {dimensions}")

    def fold(self, dimensions: int | None = None, normalize: bool | None = None) -> "Chain":
        """Return the same map with neighbouring affine steps multiplied into one, in float64.

        A normalization before bias-free maps that end in a normalization changes nothing and is dropped. The folded
        chain agrees with this one to 1e-5 in float32 on embeddings; if a mean to subtract is a hundred times the
        spread, its product with the weight loses digits.

        Args:
            dimensions: number of leading dimensions to output, where the chain is nested; only these are computed.
            normalize: replaces the chain's own setting.

        Raises:
            NotFittedError: before `fit`.
            InputError: for output dimensions that the chain does not serve.
        """
        if not self.fitted:
            raise NotFittedError("a chain must be fitted before it is folded")
        self.require_dimensions(dimensions)
        normalize = self.normalize if normalize is None else normalize
        primitives = [primitive for step in self.float_steps for primitive in step.primitives()]
        like = next(self.buffers(), None)
        if dimensions is not None and like is not None:
            columns = torch.arange(dimensions, device=like.device)
            primitives.append(Selection(dimensions, columns, self.output_dimensions))
        if normalize:
            primitives.append(Normalize())
        quantizer = [] if self.quantizer is None else [self.quantizer]
        chain = Chain([*fold_primitives(primitives), *quantizer], normalize=False)
        dtype = next((buffer.dtype for buffer in self.buffers() if buffer.is_floating_point()), None)
        return chain if like is None else chain.to(dtype=dtype, device=like.device)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Map]:
        return iter(self.transforms)

    @overload
    def __getitem__(self, index: int) -> Map: ...
    @overload
    def __getitem__(self, index: slice) -> "Chain": ...
    def __getitem__(self, index: int | slice) -> "Map | Chain":
        """Return a step, or a chain of copies of some of the steps, without the metadata."""
        if isinstance(index, slice):
            return Chain(copy.deepcopy(self.transforms[index]), self.normalize)
        return self.transforms[index]

    def __add__(self, other: "Map | Chain") -> "Chain":
        """Return a chain of copies of these steps, then of a step or another chain's steps.

        A normalization between two chains stays. What is fitted stays fitted:
        `(chain + Int8()).fit(vectors, refit=False)` fits the new step only.

        Raises:
            StepError: if it cannot follow, with the reason.
        """
        if isinstance(other, Map):
            return Chain(copy.deepcopy([*self.transforms, other]), self.normalize)
        if not isinstance(other, Chain):
            return NotImplemented
        between = [Normalize()] if self.normalize else []
        return Chain(copy.deepcopy([*self.transforms, *between, *other.transforms]), other.normalize)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Chain):
            return NotImplemented
        if (self.normalize, self.specs()) != (other.normalize, other.specs()):
            return False
        mine, theirs = self.state_dict(), other.state_dict()
        return mine.keys() == theirs.keys() and all(torch.equal(mine[name].cpu(), theirs[name].cpu()) for name in mine)

    def __hash__(self) -> int:
        return hash((self.normalize, *(step.kind for step in self.transforms)))

    def specs(self) -> list[Spec]:
        """Return the steps as JSON."""
        return [step.spec() for step in self.transforms]

    def save(
        self,
        path: str | PathLike[str],
        metadata: Mapping[str, Any] | None = None,
        statistics: FitStatistics | None = None,
    ) -> Manifest:
        """Write the fitted chain as an artifact folder and return its manifest; see `transforms.artifact.folder`.

        Args:
            path: of the new folder.
            metadata: added to the manifest, over `self.metadata`; fields that the chain itself writes win.
            statistics: of the rows it was fitted on, stored beside it.

        Raises:
            ArtifactError: if the chain is not fitted, is folded, or the folder exists.
        """
        statistics = statistics or FitStatistics()
        if not self.fitted:
            raise ArtifactError("a chain must be fitted before it is saved")
        if not all(step.kind in TRANSFORMS for step in self.transforms):
            raise ArtifactError("a folded chain cannot be saved; save the one it was folded from")
        manifest = {
            "steps": self.specs(),
            "normalize": self.normalize,
            "input_dimensions": self.input_dimensions,
            "output_dimensions": self.output_dimensions,
            "nested": self.nested,
        }
        inherited = {name: value for name, value in self.metadata.items() if name not in FitStatistics.FIELDS}
        manifest = inherited | dict(metadata or {}) | manifest | statistics.describe()
        distribution = statistics.distribution
        payload = None if distribution is None else distribution.payload
        return write_artifact(Path(path), manifest, self.tensors() | statistics.tensors(), payload)

    def tensors(self) -> dict[str, Tensor]:
        """Return the learned tensors, named `<position of the step>.<buffer>`."""
        steps = enumerate(self.transforms)
        return {f"{index}.{name}": buffer for index, step in steps for name, buffer in step.named_buffers()}

    @classmethod
    def from_tensors(cls, steps: Sequence[Spec], normalize: bool, tensors: Mapping[str, Tensor]) -> "Chain":
        """Build a fitted chain from what `specs` and `tensors` returned; tensors of other names are ignored.

        Raises:
            StepError: for unknown steps.
            ArtifactError: if a tensor is missing, unknown or not finite.
        """
        chain = cls(build_steps(steps), normalize)
        for index, step in enumerate(chain.transforms):
            prefix = f"{index}."
            assert isinstance(step, Transform)
            step.restore({name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)})
        return chain

    @classmethod
    def load(cls, path: str | PathLike[str], root: Path | None = None) -> "Chain":
        """Read a chain from its artifact folder; outputs are bit-equal to those of the saved one.

        Args:
            path: of the folder.
            root: a folder around it that no link may lead out of; None follows links anywhere.

        Raises:
            ArtifactError: if anything is missing, truncated, altered, too new, or contradicts itself.
        """
        manifest, tensors = read_artifact(Path(path), root)
        try:
            chain = cls.from_tensors(manifest["steps"], manifest["normalize"], tensors)
            declared = (manifest["input_dimensions"], manifest["output_dimensions"])
            found = (chain.input_dimensions, chain.output_dimensions)
            if found == declared and found[0] is not None:  # only applying the chain shows whether its tensors fit
                found = (found[0], chain.floats(torch.zeros(1, found[0])).shape[1])
        except (KeyError, IndexError, TypeError, RuntimeError, StepError, InputError, NotFittedError) as error:
            raise ArtifactError(f"the chain at {display_name(Path(path))} cannot be rebuilt: {error}") from error
        if found != declared:
            raise ArtifactError(
                f"the tensors of {display_name(Path(path))} map {found[0]} to {found[1]}, its manifest says otherwise"
            )
        chain.metadata = manifest
        return chain
