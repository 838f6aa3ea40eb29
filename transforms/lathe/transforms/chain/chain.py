"""An ordered list of fitted transforms, applied as one."""

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Never, Self, overload

import torch
from numpy.typing import NDArray
from safetensors.torch import load, save
from torch import Tensor, nn

from lathe.transforms.artifact import FitDistribution, Manifest, display_name, read_artifact, write_artifact
from lathe.transforms.artifact.folder import HEADER_LENGTH_BYTES
from lathe.transforms.base import (
    TRANSFORMS,
    Checkpoint,
    CheckpointPath,
    Inverse,
    Map,
    QueryPairs,
    Side,
    Signature,
    Spec,
    Transform,
    apply,
    restore_on_error,
    view_through,
)
from lathe.transforms.chain.folding import fold_primitives
from lathe.transforms.chain.steps import build_steps
from lathe.transforms.codes import Quantizer
from lathe.transforms.errors import ArtifactError, InputError, NotFittedError, StepError
from lathe.transforms.linear import Affine, Normalize, Selection
from lathe.transforms.progress import Progress, no_progress
from lathe.transforms.statistics import unit_rows
from lathe.transforms.vectors import Vectors, as_vectors, require_matrix


class Chain(nn.Module):
    """Transforms applied in order, followed by L2 normalization unless `normalize` is off.

    A quantizer, which must be the last step, comes after that normalization; queries are not quantized. Some steps map
    queries otherwise than documents: `transform` is for documents, `transform_queries` for queries. Chains are composed
    by `chain + step` or `chain + chain`, sliced, and equal (`==`) if they are the same map: the same steps with the
    same fitted tensors.

    Attributes:
        steps: the transforms; a folded chain also holds affine maps.
        normalize: whether outputs are L2-normalized.
        metadata: further fields of the artifact's manifest: `n_fit` (number of rows of the last fit), encoder,
            provenance, certificate.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import PCA, R2, Chain, Int8
        >>> rows = np.random.default_rng(0).normal(1, 1, size=(300, 16)).astype(np.float32)
        >>> chain = Chain([R2(), PCA(8), Int8()]).fit(rows)
        >>> chain.transform(rows).dtype, chain.transform(rows).shape
        (dtype('int8'), (300, 8))
        >>> chain.transform_queries(rows[:2]).shape, chain.bytes_per_vector
        ((2, 8), 8)
    """

    def __init__(self, steps: Iterable[Map], normalize: bool = True) -> None:
        """Store the steps, and check that each can be applied to the outputs of the ones before it.

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

    def __repr__(self) -> str:
        """Return the steps with their parameters in one line."""
        return f"Chain({', '.join(map(repr, self.transforms))}{'' if self.normalize else ', normalize=False'})"

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yield the buffers of all steps."""
        return (buffer for step in self.transforms for buffer in step.buffers())

    @property
    def transforms(self) -> list[Map]:
        """Steps as a `list[Map]`, for type checkers, unlike the `ModuleList` in `steps`."""
        return [step for step in self.steps if isinstance(step, Map)]

    @property
    def quantizer(self) -> Quantizer | None:
        """Last step if it is a quantizer, else None."""
        last = self.steps[-1] if len(self.steps) else None
        return last if isinstance(last, Quantizer) else None

    @property
    def float_steps(self) -> list[Map]:
        """Steps without the quantizer."""
        return [step for step in self.transforms if not isinstance(step, Quantizer)]

    def signature(
        self, dimensions: int | None = None, refit: bool = False, target_dimensions: int | None = None
    ) -> Signature:
        """Check that every step can be applied to the outputs of the ones before it.

        No step is applied: the check uses only parameters and numbers of dimensions.

        Args:
            dimensions: number of dimensions of the inputs; None if unknown.
            refit: whether to ignore fitted state, because the steps will be fitted again.
            target_dimensions: number of dimensions of the targets, if steps are to be fitted on pairs.

        Returns:
            The signature of the last outputs: their dimensions, rank and kind of codes.

        Raises:
            StepError: naming the first step that cannot follow the steps before it, with the reason.
        """
        signature = Signature(dimensions, target_dimensions=target_dimensions)
        for step in self.transforms:
            signature = step.infer_signature(signature, refit)
        return signature

    def dimensions_after(self, dimensions: int) -> int:
        """Return the number of output dimensions of the chain for inputs with `dimensions` dimensions.

        Raises:
            StepError: naming the first step that cannot follow the steps before it.
            NotFittedError: if the output dimensions are known only after the fit.
        """
        outputs = self.signature(dimensions).dimensions
        if outputs is None:
            raise NotFittedError("the dimensions of the targets are not known before the fit")
        return outputs

    def fit(
        self,
        vectors: Vectors,
        *others: Never,
        on_progress: Progress = no_progress,
        targets: Vectors | None = None,
        refit: bool = True,
        checkpoints: CheckpointPath | None = None,
        queries: Vectors | None = None,
        pairs: QueryPairs | None = None,
    ) -> Self:
        """Fit the steps in place, each on the outputs of the steps before, and return the chain. NaN or inf raises.

        The vectors are streamed in blocks from where they are stored. If the fit fails, every step is restored.

        Args:
            vectors: `(n, d)`: an array, a tensor, a memmap or lists of numbers.
            others: refused; scikit-learn passes labels here.
            on_progress: called with progress in [0, 1] and a message; an exception that it raises stops the fit.
            targets: what each row should become, `(n, k)`, for steps that are fitted on pairs.
            refit: whether to fit steps again that are already fitted.
            checkpoints: folder for the state of steps that are trained; see `Transform.fit`.
            queries: vectors `(m, d)` that will search the fitted ones, transformed by the preceding steps like them;
                for steps that weight directions by queries.
            pairs: queries with their relevant documents, of d dimensions, for steps that learn from them; both are
                transformed by the preceding steps.

        Raises:
            InputError: for no rows, vectors a step cannot learn from (NaN and inf among them), or missing targets or
                pairs.
            StepError: if the steps do not fit the dimensions or one another, or the chain is folded.
            TypeError: for a second argument without a name.
        """
        if others:
            raise TypeError(
                "Chain.fit takes the vectors alone, and all else by name, as in fit(vectors, targets=…); in a "
                "scikit-learn pipeline, use lathe.transforms.sklearn.ChainTransformer"
            )
        vectors = as_vectors(vectors)
        require_matrix(vectors)
        to_fit = self._select_steps_to_fit(refit)
        # Targets, queries or pairs that no step uses are refused: the caller expects them to have an effect.
        paired = [step.kind for step in to_fit.values() if step.paired]
        if targets is None and paired:
            raise InputError(f"{paired[0]} is fitted on pairs: give targets, what each vector should become")
        if targets is not None and not paired:
            raise InputError("no step is fitted on targets; procrustes, low_rank_affine and contrastive_alignment are")
        if queries is not None and not any(step.takes_queries for step in to_fit.values()):
            raise InputError("no step is fitted on queries; codes are")

        self._check_pairs(to_fit.values(), pairs, vectors.shape[1])
        # All steps are checked before the first is fitted, so that a later one is not refused after that work.
        self.signature(vectors.shape[1], refit, None if targets is None else targets.shape[1])
        with restore_on_error(self.transforms):
            for index, step in to_fit.items():
                checkpoint = None
                if checkpoints is not None:
                    # The given path is a folder: each step has its own file in it.
                    checkpoint = Checkpoint.at(checkpoints)
                    checkpoint = replace(checkpoint, path=checkpoint.path / f"{index}-{step.kind}.safetensors")
                self._fit_step(index, vectors, on_progress, targets, checkpoint, queries, pairs)

        if to_fit:
            self.metadata = self.metadata | {"n_fit": vectors.shape[0]}
        on_progress(1.0, "fitted")
        return self

    @staticmethod
    def _check_pairs(steps: Iterable[Transform], pairs: QueryPairs | None, dimensions: int) -> None:
        """Raise `InputError` unless `pairs` are given exactly if a step learns from queries and relevant documents.

        Raises:
            InputError: if the pairs are missing, not expected, or their vectors do not have `dimensions` dimensions.
        """
        learning = [step.kind for step in steps if step.takes_pairs]
        if pairs is None and learning:
            raise InputError(f"{learning[0]} is fitted on queries and their relevant documents: give pairs")
        if pairs is None:
            return
        if not learning:
            raise InputError("no step is fitted on pairs of query and document; query_adapter is")

        for name, vectors in (("queries", pairs.queries), ("documents", pairs.documents)):
            if vectors.shape[1] != dimensions:
                raise InputError(f"the {name} of the pairs have {vectors.shape[1]} dimensions, the rows {dimensions}")

    def _select_steps_to_fit(self, refit: bool) -> dict[int, Transform]:
        """Return the steps to fit, by position: all if `refit`, else the unfitted steps. A folded step raises.

        Raises:
            StepError: if one of them can only be applied, as in a folded chain.
        """
        steps = {}
        for index, step in enumerate(self.transforms):
            if refit or not step.fitted:
                if not isinstance(step, Transform):
                    raise StepError(
                        f"{step.kind} comes from folding and cannot be fitted; fit the chain it was folded from"
                    )
                steps[index] = step

        return steps

    def fit_transform(self, vectors: Vectors, *others: Never, **options: Any) -> Any:
        """Fit the chain to vectors `(n, d)` as `fit` does, and return the same vectors transformed by it, `(n, k)`."""
        return self.fit(vectors, *others, **options).transform(vectors)

    def _fit_step(
        self,
        index: int,
        vectors: Vectors,
        on_progress: Progress = no_progress,
        targets: Vectors | None = None,
        checkpoint: CheckpointPath | None = None,
        queries: Vectors | None = None,
        pairs: QueryPairs | None = None,
    ) -> None:
        """Fit the step at position `index`, in place, on the vectors as transformed by the steps before it.

        The steps before it must be fitted. A quantizer is fitted on normalized rows if the chain normalizes. The
        arguments are as in `fit`, but `checkpoint` is a file and not a folder.
        """

        def report(fraction: float, message: str) -> None:
            on_progress((index + fraction) / len(self.steps), message)

        step = self.transforms[index]
        assert isinstance(step, Transform)
        report(0.0, f"fitting {step.kind}")
        # `forward` normalizes once, after the float steps, so only a quantizer learns from what it normalized.
        before = Chain(self.transforms[:index], self.normalize and isinstance(step, Quantizer))

        if len(before) or before.normalize:  # the first step learns from the vectors in their own precision
            vectors = view_through(vectors, before)
            queries = None if queries is None else view_through(queries, before.query_chain())
            pairs = None if pairs is None else pairs.map(before.transform_queries, before.transform)

        step.fit(vectors, report, targets, checkpoint, queries, pairs)

    def forward(self, x: Tensor, dimensions: int | None = None, side: Side = "document") -> Tensor:
        """Apply the fitted steps to rows `(n, d)`, and return floats or byte codes `(n, k)`.

        Floats are cut to the first `dimensions` columns and normalized if the chain normalizes, then quantized if the
        last step is a quantizer. With the side "query" the steps are applied as they map queries, and nothing is
        quantized.
        """
        quantizer = None
        for step in self.transforms:
            if isinstance(step, Quantizer):
                quantizer = step
            else:
                x = step.map_for(side)(x)

        # Cut first, because a prefix of a unit row is not a unit row; quantize last: codes cannot be normalized.
        x = x if dimensions is None else x[..., :dimensions]
        x = unit_rows(x) if self.normalize else x
        return quantizer(x) if quantizer is not None and side == "document" else x

    @overload
    def transform(self, rows: Tensor, dimensions: int | None = None) -> Tensor: ...
    @overload
    def transform(self, rows: Any, dimensions: int | None = None) -> NDArray[Any]: ...
    def transform(self, rows: Any, dimensions: int | None = None) -> Any:
        """Transform documents `(n, d)` to floats or byte codes `(n, k)`.

        A chain that ends in a quantizer outputs codes; see `dequantize`.

        Args:
            rows: the vectors.
            dimensions: number of leading dimensions to output, if the chain is nested.

        Returns:
            A tensor on the input's device for a tensor, else a NumPy array.

        Raises:
            NotFittedError: before `fit`.
            InputError: for vectors of other dimensions than fitted on, for NaN and inf, or output dimensions that the
                chain cannot serve.
        """
        self.require_dimensions(dimensions)
        return apply(self, rows, require_finite=True, dimensions=dimensions)

    def floats(self, rows: Any, dimensions: int | None = None) -> Any:
        """Transform documents `(n, d)` to floats `(n, k)`.

        It is `transform`, but byte codes are decoded if the chain ends in a quantizer.
        """
        return self.dequantize(self.transform(rows, dimensions))

    def transform_queries(self, rows: Any, dimensions: int | None = None) -> Any:
        """Transform queries `(n, d)` to floats `(n, k)`.

        The inner products of the outputs with the documents' outputs are the scores of a search. Steps map queries in
        their own way if they have one, and a quantizer is left out: inner products with `floats` of documents are the
        scores of their codes. Parameters, type of the result and errors are as in `transform`.
        """
        self.require_dimensions(dimensions)
        return apply(self, rows, require_finite=True, dimensions=dimensions, side="query")

    def without_quantizer(self) -> "Chain":
        """Return a chain of the same steps without the quantizer at its end.

        The steps are shared, not copied.
        """
        return Chain(self.float_steps, self.normalize)

    def query_chain(self) -> "Chain":
        """Return a chain whose `transform` maps queries as `transform_queries` of this chain does.

        It has no quantizer, shares its tensors with this chain, and cannot be fitted or saved.
        """
        return Chain([step.map_for("query") for step in self.float_steps], self.normalize)

    @property
    def two_sided(self) -> bool:
        """Whether a step maps queries otherwise than documents.

        That queries are not quantized does not count.
        """
        return any(step.two_sided for step in self.transforms)

    def dequantize(self, codes: Any) -> Any:
        """Decode the quantizer's codes to floats `(n, k)`.

        Without a quantizer, the input is returned unchanged.
        """
        return codes if self.quantizer is None else self.quantizer.inverse_transform(codes)

    @property
    def inverse_kind(self) -> Inverse:
        """How well the chain can be inverted: `"exact"`, `"approximate"` or `"none"`.

        It is `"none"` if the chain normalizes, else the kind of the step that can be inverted least.
        """
        kinds = {step.inverse_kind for step in self.transforms} | {"none" if self.normalize else "exact"}
        if "none" in kinds:
            return "none"
        return "approximate" if "approximate" in kinds else "exact"

    def inverse_transform(self, rows: Any) -> Any:
        """Map outputs `(n, k)` back to inputs `(n, d)` by inverting the steps. A chain that cannot be inverted raises.

        The result is exact or approximate, as `inverse_kind` says.

        Returns:
            A tensor for a tensor, else a NumPy array.

        Raises:
            StepError: if the chain cannot be inverted.
            NotFittedError: before `fit`.
            InputError: for vectors of other dimensions than the outputs have.
        """
        if self.inverse_kind == "none":
            raise StepError("this chain cannot be inverted: one of its steps, or its normalization, cannot")
        # (AB)⁻¹ = B⁻¹A⁻¹: the last step is undone first.
        for step in reversed(self.transforms):
            rows = step.inverse_transform(rows)
        return rows

    @property
    def fitted(self) -> bool:
        """Whether every step is fitted."""
        return all(step.fitted for step in self.transforms)

    @property
    def input_dimensions(self) -> int | None:
        """Number of input dimensions, fixed by the fit.

        None if no step fixes it.
        """
        return next((step.input_dimensions for step in self.transforms if step.input_dimensions), None)

    @property
    def output_dimensions(self) -> int | None:
        """Number of output dimensions, or None if `input_dimensions` is None."""
        return None if self.input_dimensions is None else self.dimensions_after(self.input_dimensions)

    @property
    def bytes_per_vector(self) -> int | None:
        """Number of bytes of an output vector: 4 per dimension as floats, or the size of its code.

        None if the output dimensions are unknown.
        """
        width = self.output_dimensions
        if width is None:
            return None
        return 4 * width if self.quantizer is None else self.quantizer.code_bytes(width)

    @property
    def nested(self) -> bool:
        """Whether any prefix of an output, once normalized, is usable by itself (Matryoshka).

        The last step other than `Normalize` decides, and a chain that ends in a quantizer is not nested.
        """
        last = next((step for step in reversed(self.transforms) if not isinstance(step, Normalize)), None)
        return last is not None and bool(last.nested)

    def serves(self, dimensions: int) -> bool:
        """Return whether `transform` can give outputs of `dimensions` dimensions.

        It can give the full number, or fewer if the chain is nested (Matryoshka). False if the full number is unknown.
        """
        return serves_dimensions(self.output_dimensions, self.nested, dimensions)

    def describe_dimensions(self) -> str:
        """Return as text which output dimensions the chain can give.

        It is "any number up to 384" if the chain is nested, else "only 384".
        """
        return f"any number up to {self.output_dimensions}" if self.nested else f"only {self.output_dimensions}"

    def require_dimensions(self, dimensions: int | None) -> None:
        """Check that `transform` can give outputs of `dimensions` dimensions.

        None stands for the full number and is always allowed.

        Raises:
            InputError: if it cannot.
        """
        if dimensions is not None and (not isinstance(dimensions, int) or not self.serves(dimensions)):
            raise InputError(f"this chain serves {self.describe_dimensions()} dimensions, not {dimensions}")

    def fold(self, dimensions: int | None = None, normalize: bool | None = None, side: Side = "document") -> "Chain":
        """Return a chain of equal outputs, in which consecutive affine steps are one matrix. An unfitted chain raises.

        Products are computed in float64. A normalization before bias-free maps that end in a normalization changes
        nothing and is dropped. The folded chain agrees with this one to 1e-5 in float32 on embeddings; if a mean to
        subtract is a hundred times the spread, its product with the weight loses digits.

        Args:
            dimensions: number of leading dimensions to output, if the chain is nested; only these are computed.
                None outputs all.
            normalize: replaces the chain's own setting; None keeps it.
            side: vectors that the new chain's `transform` is for: `document` as `transform` of this chain maps them,
                `query` as `transform_queries`, without a quantizer.

        Raises:
            NotFittedError: before `fit`.
            InputError: for output dimensions the chain cannot serve.
        """
        if not self.fitted:
            raise NotFittedError("a chain must be fitted before it is folded")

        self.require_dimensions(dimensions)
        normalize = self.normalize if normalize is None else normalize
        primitives = [primitive for step in self.float_steps for primitive in step.map_for(side).primitives()]
        like = next(self.buffers(), None)

        if dimensions is not None and like is not None:
            columns = torch.arange(dimensions, device=like.device)
            primitives.append(Selection(dimensions, columns, self.output_dimensions))

        if normalize:
            # As a primitive, the final normalization can become part of the last affine map.
            primitives.append(Normalize())

        quantizer = [self.quantizer] if self.quantizer is not None and side == "document" else []
        chain = Chain([*fold_primitives(primitives), *quantizer], normalize=False)
        dtype = next((buffer.dtype for buffer in self.buffers() if buffer.is_floating_point()), None)

        # `Module.to` casts float buffers only, so the columns of a selection stay integers.
        return chain if like is None else chain.to(dtype=dtype, device=like.device)

    def truncate_folded(self, dimensions: int) -> "Chain | None":
        """Return a copy of a folded chain with the first `dimensions` outputs, None unless it ends in an affine map.

        The result equals `fold(dimensions)` of the chain that this one was folded from. It shares the tensors, so that
        it takes no memory.

        Args:
            dimensions: number of leading dimensions to output, of a chain that is nested.

        Returns:
            The chain, or None if the last map is not affine, or if the chain has a quantizer or normalizes after its
                steps.
        """
        last = self.transforms[-1] if self.transforms else None
        if not isinstance(last, Affine) or self.quantizer is not None or self.normalize:
            return None
        # The first outputs of Wx + b are the first rows of W and b; slices share the tensors' memory.
        bias = None if last.bias is None else last.bias[:dimensions]
        return Chain([*self.transforms[:-1], Affine(last.weight[:dimensions], bias, last.normalize)], normalize=False)

    def as_module(self) -> "EncoderModule":
        """Return a module that applies the chain within a `SentenceTransformer`.

        Append it by `model.append(chain.as_module())`. It shares the chain's tensors.
        """
        return EncoderModule(self)

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.steps)

    def __iter__(self) -> Iterator[Map]:
        """Iterate over the steps in order."""
        return iter(self.transforms)

    @overload
    def __getitem__(self, index: int) -> Map: ...
    @overload
    def __getitem__(self, index: slice) -> "Chain": ...
    def __getitem__(self, index: int | slice) -> "Map | Chain":
        """Return the step at an index, or, for a slice, a new chain of copies of those steps, without metadata."""
        if isinstance(index, slice):
            # A fit changes the step objects, so a step that two chains share would change in both.
            return Chain(copy.deepcopy(self.transforms[index]), self.normalize)
        return self.transforms[index]

    def __add__(self, other: "Map | Chain") -> "Chain":
        """Return a new chain of copies of this chain's steps and, after them, of a step or of another chain's steps.

        If this chain normalizes, a `Normalize` step is put between two chains. Fitted steps stay fitted: `(chain +
        Int8()).fit(vectors, refit=False)` fits the new step only.

        Raises:
            StepError: if a step cannot follow the steps before it, with the reason.
        """
        if isinstance(other, Map):
            return Chain(copy.deepcopy([*self.transforms, other]), self.normalize)
        if not isinstance(other, Chain):
            return NotImplemented
        between = [Normalize()] if self.normalize else []
        return Chain(copy.deepcopy([*self.transforms, *between, *other.transforms]), other.normalize)

    def __eq__(self, other: object) -> bool:
        """Return whether the other is a chain with the same steps, the same fitted tensors and the same `normalize`."""
        if not isinstance(other, Chain):
            return NotImplemented
        if (self.normalize, self.specs()) != (other.normalize, other.specs()):
            return False
        mine, theirs = self.state_dict(), other.state_dict()
        # `torch.equal` raises for tensors on different devices.
        return mine.keys() == theirs.keys() and all(torch.equal(mine[name].cpu(), theirs[name].cpu()) for name in mine)

    def __hash__(self) -> int:
        # Defining `__eq__` removes the inherited hash. Fitted tensors change in a fit, so they stay out of this one.
        return hash((self.normalize, *(step.kind for step in self.transforms)))

    def specs(self) -> list[Spec]:
        """Return the spec of each step, kind and parameters, as JSON-serializable dicts."""
        return [step.spec() for step in self.transforms]

    def save(
        self,
        path: str | PathLike[str],
        metadata: Mapping[str, Any] | None = None,
        distribution: FitDistribution | None = None,
    ) -> Manifest:
        """Write the chain to a new artifact folder, and return the manifest. An unfitted or folded chain raises.

        The folder holds manifest, tensors and, if given, the distribution of the fitted rows. See
        `lathe.transforms.artifact.folder` for the files.

        Args:
            path: path of the new folder.
            metadata: fields added to the manifest; they override `self.metadata`, but not the chain's own fields.
            distribution: of the rows that the chain was fitted on, to compare other rows with; None stores none.

        Returns:
            The manifest that was written.

        Raises:
            ArtifactError: if the chain is not fitted, is folded, or the folder exists.
        """
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
        # The distribution in a loaded manifest describes a file that this artifact may not contain.
        inherited = {name: value for name, value in self.metadata.items() if name != "reference"}
        reference = {} if distribution is None else {"reference": distribution.describe()}
        manifest = inherited | dict(metadata or {}) | manifest | reference
        payload = None if distribution is None else distribution.payload

        return write_artifact(Path(path), manifest, self.tensors(), payload)

    def tensors(self) -> dict[str, Tensor]:
        """Return the fitted buffers of all steps by name.

        A name is the step's position and the buffer's name, such as `0.mean`.
        """
        steps = enumerate(self.transforms)
        return {f"{index}.{name}": buffer for index, step in steps for name, buffer in step.named_buffers()}

    @classmethod
    def from_tensors(cls, steps: Sequence[Spec], normalize: bool, tensors: Mapping[str, Tensor]) -> "Chain":
        """Build a fitted chain from the specs and tensors of its steps. A missing, unknown or infinite tensor raises.

        `specs()` and `tensors()` of a chain give both. Tensors whose names do not begin with a step's position are
        ignored.

        Raises:
            StepError: for unknown steps.
            ArtifactError: if a step's tensor is missing, unknown or not finite.
        """
        chain = cls(build_steps(steps), normalize)
        for index, step in enumerate(chain.transforms):
            # The dot keeps the tensors of steps 1 and 10 apart.
            prefix = f"{index}."
            assert isinstance(step, Transform)
            step.restore({name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)})
        return chain

    @classmethod
    def load(cls, path: str | PathLike[str], root: Path | None = None) -> "Chain":
        """Load a fitted chain from its artifact folder, and check it by applying it. Missing or altered files raise.

        The chain is checked by applying it to two rows as documents and as queries, because an artifact from somebody
        else may hold anything. Its outputs are bit-equal to the outputs of the saved chain, and the folder's manifest
        becomes its `metadata`.

        Args:
            path: path of the folder.
            root: a folder around it that no link may lead out of; None follows links anywhere.

        Raises:
            ArtifactError: if anything is missing, truncated, altered, too new, or contradicts itself.
        """
        manifest, tensors = read_artifact(Path(path), root)
        try:
            chain = cls.from_tensors(manifest["steps"], manifest["normalize"], tensors)
            chain._check_against_manifest(manifest, tensors)
            chain._check_by_applying()
        except Exception as error:  # steps that get tensors of somebody else may fail in any way
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise ArtifactError(f"the chain at {display_name(Path(path))} cannot be rebuilt: {reason}") from error

        chain.metadata = manifest
        return chain

    def _check_against_manifest(self, manifest: Manifest, tensors: Mapping[str, Tensor]) -> None:
        """Raise `ArtifactError` unless the manifest has the chain's dimensions and each tensor belongs to a step.

        Raises:
            ArtifactError: if a dimension differs, or a tensor belongs to no step.
        """
        for name, actual in (
            ("input_dimensions", self.input_dimensions),
            ("output_dimensions", self.output_dimensions),
            ("nested", self.nested),
        ):
            if manifest[name] != actual:
                raise ArtifactError(f"its {name} is {actual}, its manifest says otherwise: {manifest[name]}")

        if unknown := [name for name in tensors if name not in self.tensors()]:
            raise ArtifactError(f"the tensor {unknown[0]!r} belongs to no step")

    def _check_by_applying(self) -> None:
        """Raise `ArtifactError` unless two rows, as documents and queries, map to finite outputs of the right shape.

        The rows are zeros and a random unit row. Only applying the chain shows whether the tensors of different steps
        fit together.

        Raises:
            ArtifactError: if an output has another shape, or is not finite.
        """
        width = self.input_dimensions
        if width is None:
            return

        unit = unit_rows(torch.randn(1, width, generator=torch.Generator().manual_seed(0)))
        for row in (torch.zeros(1, width), unit):
            for outputs in (self.floats(row), self.transform_queries(row)):
                if outputs.shape != (1, self.output_dimensions):
                    raise ArtifactError(f"it maps a row to the shape {tuple(outputs.shape)}")
                if not torch.isfinite(outputs).all():
                    raise ArtifactError("it maps a unit row to numbers that float32 cannot hold")


class EncoderModule(nn.Module):
    """Module that applies a chain to the sentence embeddings of a `SentenceTransformer`.

    It has the methods that sentence-transformers calls, without importing that library. `encode` and
    `encode_document` return what `Chain.floats` returns: codes are decoded, so that the model's similarities hold.
    `encode_query` returns what `Chain.transform_queries` returns.

    Attributes:
        chain: the fitted chain.
        forward_kwargs: names of the arguments of `encode` that the library passes on to `forward`.
    """

    forward_kwargs: ClassVar[set[str]] = {"task"}

    def __init__(self, chain: Chain) -> None:
        super().__init__()
        self.chain = chain

    def forward(self, features: dict[str, Any], task: str | None = None) -> dict[str, Any]:
        """Replace the embeddings `(n, d)` under `sentence_embedding` by the chain's float outputs `(n, k)`.

        Args:
            features: what the modules before this one computed; changed in place.
            task: `query` maps the embeddings as queries; anything else maps them as documents.

        Returns:
            The same dict `features`.
        """
        # A model may run in half precision; the chain is applied in the dtype of its own buffers.
        dtype = next((b.dtype for b in self.buffers() if b.is_floating_point()), torch.float32)
        embeddings: Tensor = features["sentence_embedding"].to(dtype)

        if task == "query":
            features["sentence_embedding"] = self.chain(embeddings, side="query")
        else:
            features["sentence_embedding"] = self.chain.dequantize(self.chain(embeddings))

        return features

    def get_embedding_dimension(self) -> int:
        """Return the number of dimensions of the embeddings that the chain outputs.

        sentence-transformers calls this method.

        Raises:
            NotFittedError: if the chain is not fitted.
        """
        if self.chain.output_dimensions is None:
            raise NotFittedError("the dimensions of a chain are known once it is fitted")
        return self.chain.output_dimensions

    def save(self, output_path: str, *args: object, **kwargs: object) -> None:
        """Always raise `StepError`: a saved model would need Lathe wherever it is loaded, so saving is refused.

        Raises:
            StepError: with the command that exports a model for any machine.
        """
        raise StepError(
            "a model with a chain in memory cannot be saved; `lathe export NAME --to DIR --format "
            "sentence-transformers` writes one that other machines load"
        )


def serves_dimensions(full: int | None, nested: bool, dimensions: int) -> bool:
    """Return whether vectors of `full` dimensions can be cut to `dimensions`.

    They can if the numbers are equal, or if the vectors are nested and `dimensions` is smaller. False if `full` is
    None.
    """
    return full is not None and (dimensions == full or (nested and 1 <= dimensions < full))


def serialize_chain(chain: Chain) -> bytes:
    """Return a fitted chain as safetensors bytes, whose header holds the specs of the steps and `normalize`.

    Metadata are left out. The outputs of the rebuilt chain are bit-equal.
    """
    # safetensors accepts only strings as metadata, and no tensors that are not contiguous.
    header = {"steps": json.dumps(chain.specs()), "normalize": json.dumps(chain.normalize)}
    return save({name: tensor.cpu().contiguous() for name, tensor in chain.tensors().items()}, header)


def deserialize_chain(payload: bytes) -> Chain:
    """Rebuild the fitted chain from bytes that `serialize_chain` returned, and return it."""
    # `safetensors.torch.load` returns the tensors without the metadata, so the header is read here.
    end = HEADER_LENGTH_BYTES + int.from_bytes(payload[:HEADER_LENGTH_BYTES], "little")
    header = json.loads(payload[HEADER_LENGTH_BYTES:end])["__metadata__"]
    return Chain.from_tensors(json.loads(header["steps"]), json.loads(header["normalize"]), load(payload))
