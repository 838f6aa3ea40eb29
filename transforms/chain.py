"""An ordered list of fitted transforms, applied as one."""

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from transforms.affine import Affine
from transforms.arrays import Vectors, require_matrix
from transforms.artifact import Manifest, read_artifact, write_artifact
from transforms.errors import ArtifactError, InputError, NotFittedError, StepError
from transforms.normalize import Normalize, unit_rows
from transforms.steps import build_steps
from transforms.transform import TRANSFORMS, Progress, Spec, Transform, apply, no_progress


class Chain(nn.Module):
    """Transforms applied in order, and a final L2 normalisation unless `normalize` is off.

    Attributes:
        steps: the transforms.
        normalize: whether outputs are normalised.
        metadata: what else its artifact says: encoder, provenance, certificate.
    """

    def __init__(self, steps: Iterable[Transform], normalize: bool = True) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)
        self.normalize = normalize
        self.metadata: Manifest = {}

    @property
    def transforms(self) -> list[Transform]:
        """The steps, typed."""
        return [step for step in self.steps if isinstance(step, Transform)]

    def width_after(self, dimensions: int) -> int:
        """The output width for inputs `dimensions` wide.

        Raises:
            StepError: naming the first step that cannot follow.
        """
        for step in self.transforms:
            dimensions = step.width_after(dimensions)
        return dimensions

    def fit(self, vectors: Vectors, on_progress: Progress = no_progress) -> Self:
        """Fit every step on the output of those before it, streaming `(n, d)` from where it lies.

        Raises:
            InputError: for no rows, or vectors a step cannot learn from, NaN and inf among them.
            StepError: if the steps do not fit the width or one another; nothing is fitted then.
        """
        require_matrix(vectors)
        self.width_after(vectors.shape[1])
        for index, step in enumerate(self.transforms):

            def report(fraction: float, message: str, done: int = index) -> None:
                on_progress((done + fraction) / len(self.steps), message)

            report(0.0, f"fitting {step.kind}")
            step.fit(View(vectors, self.transforms[:index]), report)
        on_progress(1.0, "fitted")
        return self

    def forward(self, x: Tensor, dimensions: int | None = None) -> Tensor:
        """Apply to rows `(n, d)`; see `transform`."""
        for step in self.transforms:
            x = step(x)
        x = x if dimensions is None else x[..., :dimensions]
        return unit_rows(x) if self.normalize else x

    @overload
    def transform(self, rows: Tensor, dimensions: int | None = None) -> Tensor: ...
    @overload
    def transform(self, rows: Any, dimensions: int | None = None) -> NDArray[np.float32]: ...
    def transform(self, rows: Any, dimensions: int | None = None) -> Any:
        """Apply to a tensor `(n, d)` (out comes a tensor on its device) or an array (an array).

        Args:
            rows: the vectors.
            dimensions: a size to cut to, where the chain is nested.

        Raises:
            NotFittedError: before `fit`.
            InputError: for vectors of another width, or a size this chain does not serve.
        """
        self.require_size(dimensions)
        return apply(self, rows, dimensions=dimensions)

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
        if dimensions is not None and not self.serves(dimensions):
            raise InputError(f"this chain serves {self.sizes()}, not {dimensions}")

    def fold(self, dimensions: int | None = None, normalize: bool | None = None) -> "Chain":
        """The same map with neighbouring affine steps multiplied into one, in float64.

        A normalisation before bias-free maps that end in a normalisation changes nothing and is
        dropped. Agrees with the unfolded chain to 1e-5 in float32.

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
        primitives = [primitive for step in self.transforms for primitive in step.primitives()]
        like = next(self.buffers(), None)
        if dimensions is not None and like is not None:
            selection = torch.eye(self.output_dimensions or dimensions, dtype=torch.float64, device=like.device)
            primitives.append(Affine(selection[:dimensions]))
        folded: list[Transform] = []
        for position, primitive in enumerate(primitives):
            if isinstance(primitive, Normalize) and cancels(primitives[position + 1 :], normalize):
                continue
            before = folded[-1] if folded else None
            if isinstance(primitive, Affine) and isinstance(before, Affine):
                folded[-1] = before.then(primitive)
            else:
                folded.append(primitive)
        chain = Chain(folded, normalize)
        return chain if like is None else chain.to(dtype=like.dtype, device=like.device)

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
        tensors = {
            f"{index}.{name}": buffer
            for index, step in enumerate(self.transforms)
            for name, buffer in step.named_buffers()
        }
        return write_artifact(Path(path), self.metadata | dict(metadata or {}) | manifest, tensors)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "Chain":
        """Read a chain from its artifact folder; outputs are bit-equal to those of the saved one.

        Raises:
            ArtifactError: if anything is missing, truncated, altered, too new, or contradicts itself.
        """
        manifest, tensors = read_artifact(Path(path))
        try:
            chain = cls(build_steps(manifest["steps"]), manifest["normalize"])
            for index, step in enumerate(chain.transforms):
                prefix = f"{index}."
                step.restore({name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)})
            said = (manifest["input_dimensions"], manifest["output_dimensions"])
            found = (chain.input_dimensions, chain.output_dimensions)
            if found == said and found[0] is not None:  # nothing tells more of the tensors than using them
                found = (found[0], chain.transform(torch.zeros(1, found[0])).shape[1])
        except (KeyError, TypeError, RuntimeError, StepError, InputError, NotFittedError) as error:
            raise ArtifactError(f"the chain at {path} cannot be rebuilt: {error}") from error
        if found != said:
            raise ArtifactError(f"the tensors of {path} map {found[0]} to {found[1]}, its manifest says otherwise")
        chain.metadata = manifest
        return chain


class View:
    """Rows as they are after some transforms, computed when they are asked for."""

    def __init__(self, vectors: Vectors, steps: list[Transform]) -> None:
        self.vectors = vectors
        self.steps = steps
        self.shape = (vectors.shape[0], Chain(steps).width_after(vectors.shape[1]))

    def __getitem__(self, rows: Any, /) -> Any:
        """The chosen rows, transformed."""
        block = self.vectors[rows]
        for step in self.steps:
            block = step.transform(block)
        return block


def cancels(following: list[Transform], normalize: bool) -> bool:
    """Whether a normalisation followed by these steps makes no difference to the output."""
    for step in following:
        if isinstance(step, Normalize):
            return True
        if not isinstance(step, Affine) or step.bias is not None:
            return False
    return normalize
