"""An ordered list of fitted transforms, applied as one."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Self, overload

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from transforms.artifact.fit_distribution import Reference
from transforms.artifact.folder import Manifest, called, read_artifact, write_artifact
from transforms.artifact.stored_moments import described, tensors_of
from transforms.base.checkpoint import Checkpoint, Place
from transforms.base.signature import Outline
from transforms.base.transform import (
    TRANSFORMS,
    Inverse,
    Progress,
    Spec,
    Transform,
    apply,
    no_progress,
    unchanged_on_error,
)
from transforms.base.transformed_view import behind
from transforms.chain.folding import fold_primitives
from transforms.chain.steps import build_steps
from transforms.codes.quantization import Quantizer
from transforms.errors import ArtifactError, InputError, NotFittedError, StepError
from transforms.linear.normalize import Normalize, unit_rows
from transforms.linear.projection import Selection
from transforms.statistics.moments import Moments
from transforms.vectors import Vectors, require_matrix


class Chain(nn.Module):
    """Transforms applied in order, and a final L2 normalisation unless `normalize` is off.

    A quantisation, which must be the last step, comes after that normalisation. Chains are put
    together by `chain + step` or `chain + chain`, taken apart by slices, and equal (`==`) if they
    are the same map: the same steps with the same fitted tensors.

    Attributes:
        steps: the transforms.
        normalize: whether outputs are normalised.
        metadata: what else its artifact says: encoder, provenance, certificate.
        moments: of the rows it was fitted on, by stage, to be saved with it so that rows can be added
            (`refit.with_rows`); none unless they were put there. `load` leaves them where they are.
        reference: what those rows look like, to be saved with it; likewise.
    """

    def __init__(self, steps: Iterable[Transform], normalize: bool = True) -> None:
        """Put the steps together.

        Raises:
            StepError: if one cannot follow those before it, with the reason.
        """
        super().__init__()
        steps = list(steps) if isinstance(steps, Iterable) else [steps]
        for step in steps:
            if not isinstance(step, Transform):
                raise StepError(f"a chain is made of transforms such as R2(), not {step!r}; parse_steps reads text")
        self.steps = nn.ModuleList(steps)
        self.normalize = normalize
        self.metadata: Manifest = {}
        self.moments: dict[int, Moments] = {}
        self.reference: Reference | None = None
        self.outline()

    @property
    def transforms(self) -> list[Transform]:
        """The steps, typed."""
        return [step for step in self.steps if isinstance(step, Transform)]

    @property
    def quantizer(self) -> Quantizer | None:
        """The last step, if it makes codes."""
        last = self.steps[-1] if len(self.steps) else None
        return last if isinstance(last, Quantizer) else None

    @property
    def float_steps(self) -> list[Transform]:
        """The steps before the quantisation."""
        return [step for step in self.transforms if not isinstance(step, Quantizer)]

    def outline(self, dimensions: int | None = None, refit: bool = False, targets: int | None = None) -> Outline:
        """What is known of the outputs for inputs of that width, before any is seen.

        Args:
            dimensions: of the inputs; None while nothing is known.
            refit: whether what was fitted does not count, because it is to be fitted anew.
            targets: the width of the targets, where steps are to be fitted on pairs.

        Raises:
            StepError: naming the first step that cannot follow, with the reason.
        """
        found = Outline(dimensions, targets=targets)
        for step in self.transforms:
            found = step.follow(found, refit)
        return found

    def width_after(self, dimensions: int) -> int:
        """The output width, once fitted, for inputs `dimensions` wide.

        Raises:
            StepError: naming the first step that cannot follow.
            NotFittedError: if only a fit will tell.
        """
        width = self.outline(dimensions).width
        if width is None:
            raise NotFittedError("the width of the targets is not known before the fit")
        return width

    def fit(
        self,
        vectors: Vectors,
        on_progress: Progress = no_progress,
        targets: Vectors | None = None,
        refit: bool = True,
        checkpoints: Place | None = None,
    ) -> Self:
        """Fit every step on the output of those before it, streaming `(n, d)` from where it lies.

        Args:
            vectors: `(n, d)`.
            on_progress: told a fraction and a sentence; what it raises stops the fit.
            targets: what each row should become, `(n, k)`, for steps that are fitted on pairs.
            refit: false keeps the steps that are fitted already, and fits only those that are not.
            checkpoints: a folder for the state of steps that are trained; see `Transform.fit`.

        Raises:
            InputError: for no rows, vectors a step cannot learn from (NaN and inf among them), or
                targets that are missing.
            StepError: if the steps do not fit the width or one another.

        After an error every step is as it was before.
        """
        require_matrix(vectors)
        to_fit = [step for step in self.transforms if refit or not step.fitted]
        paired = [step.kind for step in to_fit if step.paired]
        if targets is None and paired:
            raise InputError(f"{paired[0]} is fitted on pairs: give targets, what each vector should become")
        if targets is not None and not paired:
            raise InputError("no step is fitted on targets; procrustes and low_rank_affine are")
        self.outline(vectors.shape[1], refit, None if targets is None else targets.shape[1])
        with unchanged_on_error(self.transforms):
            for index, step in enumerate(self.transforms):
                if step in to_fit:
                    name = f"{index}-{step.kind}.safetensors"
                    checkpoint = None if checkpoints is None else Checkpoint.at(checkpoints).in_folder(name)
                    self.fit_step(index, vectors, on_progress, targets, checkpoint)
        on_progress(1.0, "fitted")
        return self

    def fit_step(
        self, index: int, vectors: Vectors, on_progress: Progress, targets: Vectors | None, checkpoint: Place | None
    ) -> None:
        """Fit one step on what those before it, fitted already, make of the vectors."""

        def report(fraction: float, message: str) -> None:
            on_progress((index + fraction) / len(self.steps), message)

        step = self.transforms[index]
        report(0.0, f"fitting {step.kind}")
        before = Chain(self.transforms[:index], self.normalize and isinstance(step, Quantizer))
        if len(before) or before.normalize:  # the first step learns from the vectors in the precision they come in
            vectors = behind(vectors, before)
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
        """Apply to a tensor `(n, d)` (out comes a tensor on its device) or an array (an array).

        A chain that ends in a quantisation gives codes; see `dequantize`.

        Args:
            rows: the vectors.
            dimensions: a size to cut to, where the chain is nested.

        Raises:
            NotFittedError: before `fit`.
            InputError: for vectors of another width, or a size this chain does not serve.
        """
        self.require_size(dimensions)
        return apply(self, rows, dimensions=dimensions)

    def floats(self, rows: Any, dimensions: int | None = None) -> Any:
        """`transform`, in floats always: where it gives codes, what those stand for."""
        return self.dequantize(self.transform(rows, dimensions))

    def dequantize(self, codes: Any) -> Any:
        """The floats `(n, k)` that outputs stand for; those of a chain without quantisation are floats already."""
        return codes if self.quantizer is None else self.quantizer.inverse_transform(codes)

    @property
    def inverse_kind(self) -> Inverse:
        """How well it can be undone: no better than its worst step; none if it normalises."""
        kinds = {step.inverse_kind for step in self.transforms} | {"none" if self.normalize else "exact"}
        return "none" if "none" in kinds else "approximate" if "approximate" in kinds else "exact"

    def inverse_transform(self, rows: Any) -> Any:
        """Undo `transform`, as far as `inverse_kind` says: `(n, k)` to `(n, d)`, an array or a tensor.

        Raises:
            StepError: if it cannot be undone.
            NotFittedError: before `fit`.
            InputError: for vectors of another width than it gives.
        """
        if self.inverse_kind == "none":
            raise StepError("this chain cannot be undone: a step of it, or its normalisation, cannot")
        for step in reversed(self.transforms):
            rows = step.inverse_transform(rows)
        return rows

    @property
    def fitted(self) -> bool:
        """Whether every step is."""
        return all(step.fitted for step in self.transforms)

    @property
    def input_dimensions(self) -> int | None:
        """The width it takes; None where any will do."""
        return next((step.input_dimensions for step in self.transforms if step.input_dimensions), None)

    @property
    def output_dimensions(self) -> int | None:
        """The width it gives; None where that depends on the input."""
        return None if self.input_dimensions is None else self.width_after(self.input_dimensions)

    @property
    def bytes_per_vector(self) -> int | None:
        """What an output takes: 4 bytes a dimension as floats, 1 or an eighth as codes."""
        width = self.output_dimensions
        bits = 32 if self.quantizer is None else self.quantizer.bits
        return None if width is None else -(-width * bits // 8)

    @property
    def nested(self) -> bool:
        """Whether every prefix of the output, renormalised, is usable."""
        last = next((step for step in reversed(self.transforms) if not isinstance(step, Normalize)), None)
        return bool(getattr(last, "nested", False))

    def serves(self, dimensions: int) -> bool:
        """Whether outputs of that size can be had."""
        full = self.output_dimensions
        return full is not None and (dimensions == full or (self.nested and 1 <= dimensions < full))

    def sizes(self) -> str:
        """The sizes it serves, in words."""
        return f"any size up to {self.output_dimensions}" if self.nested else f"only {self.output_dimensions}"

    def require_size(self, dimensions: int | None) -> None:
        """Raise `InputError` unless outputs of that size can be had; None is the full size."""
        if dimensions is not None and (not isinstance(dimensions, int) or not self.serves(dimensions)):
            raise InputError(f"this chain serves {self.sizes()}, not {dimensions}")

    def fold(self, dimensions: int | None = None, normalize: bool | None = None) -> "Chain":
        """The same map with neighbouring affine steps multiplied into one, in float64.

        A normalisation before bias-free maps that end in a normalisation changes nothing and is
        dropped. Agrees with the unfolded chain to 1e-5 in float32 on embeddings; where a mean to
        subtract is a hundred times the spread, its product with the weight loses digits first.

        Args:
            dimensions: a size to cut to, where the chain is nested; only that much is computed.
            normalize: overrides the chain's own setting.

        Raises:
            NotFittedError: before `fit`.
            InputError: for a size this chain does not serve.
        """
        if not self.fitted:
            raise NotFittedError("a chain must be fitted before it is folded")
        self.require_size(dimensions)
        normalize = self.normalize if normalize is None else normalize
        primitives = [primitive for step in self.float_steps for primitive in step.primitives()]
        like = next(self.buffers(), None)
        if dimensions is not None and like is not None:
            kept = torch.arange(dimensions, device=like.device)
            primitives.append(Selection(dimensions, kept, self.output_dimensions))
        if normalize:
            primitives.append(Normalize())
        quantizer = [] if self.quantizer is None else [self.quantizer]
        chain = Chain([*fold_primitives(primitives), *quantizer], normalize=False)
        dtype = next((buffer.dtype for buffer in self.buffers() if buffer.is_floating_point()), None)
        return chain if like is None else chain.to(dtype=dtype, device=like.device)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Transform]:
        return iter(self.transforms)

    @overload
    def __getitem__(self, index: int) -> Transform: ...
    @overload
    def __getitem__(self, index: slice) -> "Chain": ...
    def __getitem__(self, index: int | slice) -> "Transform | Chain":
        """A step, or a chain of copies of some of the steps, without the metadata."""
        if isinstance(index, slice):
            return Chain(copy.deepcopy(self.transforms[index]), self.normalize)
        return self.transforms[index]

    def __add__(self, other: "Transform | Chain") -> "Chain":
        """Copies of these steps, then of a step or of another chain's; a normalisation between two chains stays.

        What is fitted stays fitted: `(chain + Int8()).fit(vectors, refit=False)` fits the new step only.

        Raises:
            StepError: if that cannot follow, with the reason.
        """
        if isinstance(other, Transform):
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
        """The steps as JSON."""
        return [step.spec() for step in self.transforms]

    def save(self, path: str | PathLike[str], metadata: Mapping[str, Any] | None = None) -> Manifest:
        """Write the fitted chain as an artifact folder; see `transforms.artifact`.

        Args:
            path: the folder to make; it must not exist, or be empty.
            metadata: joins the manifest, over `self.metadata`; what the chain says of itself wins.

        Raises:
            ArtifactError: if the chain is not fitted or something is there already.
        """
        if not self.fitted:
            raise ArtifactError("a chain must be fitted before it is saved")
        if not all(step.kind in TRANSFORMS for step in self.transforms):
            raise ArtifactError("a folded chain is not saved; save the one it was folded from")
        manifest = {
            "steps": self.specs(),
            "normalize": self.normalize,
            "input_dimensions": self.input_dimensions,
            "output_dimensions": self.output_dimensions,
            "nested": self.nested,
        }
        not_held = {"moments", "reference"}  # of a chain that was loaded
        said = {name: value for name, value in self.metadata.items() if name not in not_held}
        manifest |= described(self.moments)
        manifest |= {"reference": self.reference.described()} if self.reference else {}
        tensors = self.tensors() | tensors_of(self.moments)
        payload = self.reference.payload if self.reference else None
        return write_artifact(Path(path), said | dict(metadata or {}) | manifest, tensors, payload)

    def tensors(self) -> dict[str, Tensor]:
        """What was learned, by number of the step and name."""
        steps = enumerate(self.transforms)
        return {f"{index}.{name}": buffer for index, step in steps for name, buffer in step.named_buffers()}

    @classmethod
    def rebuilt(cls, steps: Sequence[Spec], normalize: bool, tensors: Mapping[str, Tensor]) -> "Chain":
        """The fitted chain of what `specs` and `tensors` gave; other tensors are passed over.

        Raises:
            StepError: if there are no such steps.
            ArtifactError: if a tensor is missing, unknown or not finite.
        """
        chain = cls(build_steps(steps), normalize)
        for index, step in enumerate(chain.transforms):
            prefix = f"{index}."
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
            chain = cls.rebuilt(manifest["steps"], manifest["normalize"], tensors)
            said = (manifest["input_dimensions"], manifest["output_dimensions"])
            found = (chain.input_dimensions, chain.output_dimensions)
            if found == said and found[0] is not None:  # nothing tells more of the tensors than using them
                found = (found[0], chain.dequantize(chain.transform(torch.zeros(1, found[0]))).shape[1])
        except (KeyError, IndexError, TypeError, RuntimeError, StepError, InputError, NotFittedError) as error:
            raise ArtifactError(f"the chain at {called(Path(path))} cannot be rebuilt: {error}") from error
        if found != said:
            raise ArtifactError(
                f"the tensors of {called(Path(path))} map {found[0]} to {found[1]}, its manifest says otherwise"
            )
        chain.metadata = manifest
        return chain
