"""A step that holds two lists of steps: one that is applied to queries, and one that is applied to documents."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lathe.transforms.base import FitContext, Map, Signature, Spec, Transform
from lathe.transforms.chain.chain import Chain
from lathe.transforms.chain.steps import build_steps
from lathe.transforms.codes import Quantizer
from lathe.transforms.errors import InputError, StepError
from lathe.transforms.linear import Selection
from lathe.transforms.statistics import Moments
from lathe.transforms.vectors import Vectors


class Sides(Transform):
    """Step that applies other steps to queries than to documents, `(n, d)` to `(n, k)` each.

    The steps of the chain that follow it are the same for both. The steps of documents are fitted on the rows, the
    steps of queries on queries if some are given, else on the rows too.

    `Sides(query=[{"kind": "mc"}], document=[{"kind": "mc"}])` subtracts the mean of the queries from queries, and the
    mean of the documents from documents. In place of a list of steps, `{"query": […], "document": […]}` stands for this
    step alone.

    Args:
        query: specs of the steps of queries, in order; an empty list leaves queries as they are.
        document: specs of the steps of documents.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import Chain, parse_steps
        >>> documents, queries = np.array([[0, 1], [2, 1]]), np.array([[8, 0], [8, 4]])
        >>> chain = Chain(parse_steps('{"query": ["mc"], "document": ["mc"]}'.replace('"mc"', '{"kind": "mc"}')))
        >>> chain = chain.fit(documents.astype(np.float32), queries=queries.astype(np.float32))
        >>> chain.transform(documents).tolist(), chain.transform_queries(queries).tolist()
        ([[-1.0, 0.0], [1.0, 0.0]], [[0.0, -1.0], [0.0, 1.0]])
    """

    kind = "sides"
    takes_queries = True
    two_sided = True

    def __init__(self, query: Sequence[Mapping[str, Any]], document: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self.query_side, self.document_side = (
            _ChainMap(_build_steps_of(name, steps)) for name, steps in (("query", query), ("document", document))
        )
        self.query: list[Spec] = self.query_side.chain.specs()
        self.document: list[Spec] = self.document_side.chain.specs()
        self.queries_only = not self.document

    def check_parameters(self) -> None:
        """Check that queries or documents have at least one step here.

        Raises:
            StepError: if neither has.
        """
        if not self.query and not self.document:
            raise StepError(f"{self.kind}: neither queries nor documents have a step; leave {self.kind} out")

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the signature (dimensions, rank) of the outputs. Other dimensions of queries than of documents raise.

        Raises:
            StepError: if a step cannot follow those before it, or queries and documents end in different dimensions.
        """
        queries, documents = (side.output_signature(inputs) for side in (self.query_side, self.document_side))
        # Queries may lack directions that documents have: a later step must expect the larger number.
        empty = max(queries.zero_variance_directions, documents.zero_variance_directions)
        if queries.dimensions is None or documents.dimensions is None:
            return replace(documents, dimensions=None, zero_variance_directions=empty)
        if queries.dimensions != documents.dimensions:
            raise StepError(
                f"{self.kind}: queries would have {queries.dimensions} dimensions and documents "
                f"{documents.dimensions}: they could not be compared"
            )

        return replace(documents, zero_variance_directions=empty)

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Fit the steps of documents on the rows, and of queries on `context.queries` or the rows. Moments raise.

        If no queries are given, the steps of queries are fitted on the rows too.

        Raises:
            InputError: if a step cannot be fitted, moments are given in place of rows, or queries have other dimensions
                than the rows.
        """
        queries = data if context.queries is None else context.queries
        if isinstance(data, Moments) or isinstance(queries, Moments):
            raise InputError(f"{self.kind} is fitted on rows and not on moments")
        if queries.shape[1] != data.shape[1]:
            raise InputError(f"queries of {queries.shape[1]} dimensions cannot be compared with {data.shape[1]}")

        for side, rows in ((self.document_side, data), (self.query_side, queries)):
            if len(side.chain):
                side.chain.fit(rows, on_progress=context.report)

    def check_tensors(self) -> None:
        """Check the loaded tensors of all steps, for queries and for documents.

        Raises:
            ArtifactError: if a tensor has a shape or an entry that no fit gives.
        """
        for step in (*self.query_side.chain.transforms, *self.document_side.chain.transforms):
            if isinstance(step, Transform):
                step.check_tensors()

    @property
    def input_dimensions(self) -> int | None:
        """Number of input dimensions, or None if no step of queries or documents fixes it."""
        return self.document_side.chain.input_dimensions or self.query_side.chain.input_dimensions

    def forward(self, x: Tensor) -> Tensor:
        """Apply the steps of documents to rows, `(n, d)` to `(n, k)`.

        `query_map` applies the steps of queries.
        """
        mapped: Tensor = self.document_side(x)
        return mapped

    def primitives(self) -> list[Map]:
        """Return the simpler maps of the documents' steps, or one selection of all columns without steps."""
        if parts := self.document_side.primitives():
            return parts
        # Folding needs a map here; selecting all columns changes nothing.
        d = self.input_dimensions
        assert d is not None
        return [Selection(d, torch.arange(d, device=self.device), d)]

    def query_map(self) -> Map:
        """Return the map that applies the steps of queries."""
        return self.query_side


class _ChainMap(Map):
    """A chain of the steps of queries, or of documents, as one map."""

    kind = "side"

    def __init__(self, chain: Chain) -> None:
        super().__init__()
        self.chain = chain

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yield the buffers in the order of the chain's steps, as `Chain.buffers` does."""
        return self.chain.buffers(recurse)

    def output_signature(self, inputs: Signature) -> Signature:
        for step in self.chain.transforms:
            inputs = step.infer_signature(inputs, refit=True)
        return inputs

    def forward(self, x: Tensor) -> Tensor:
        """Apply the steps to rows, `(n, d)` to `(n, k)`.

        Without steps, return a copy of the rows.
        """
        # A copy, as of every other map: what uses the outputs may write into them.
        mapped: Tensor = self.chain(x) if len(self.chain) else x.clone()
        return mapped

    def primitives(self) -> list[Map]:
        return [part for step in self.chain.transforms for part in step.primitives()]


def _build_steps_of(name: str, steps: Sequence[Mapping[str, Any]]) -> Chain:
    """Build the unfitted chain of steps of queries or of documents, as `name` says. Codes or paired steps raise.

    Raises:
        StepError: if the specs are not steps, or among them are codes, steps with two lists of their own, or steps that
            are fitted on targets or pairs.
    """
    if not isinstance(steps, list | tuple):
        raise StepError(f"{Sides.kind}: the steps of {name} are a list, [] for none, got {steps!r}")

    built = build_steps(steps) if steps else []
    for step in built:
        if isinstance(step, Quantizer):
            raise StepError(f"{Sides.kind}: {step.kind} ends a chain, for documents alone: put it after the sides")
        # The fit gives these steps the rows of one kind, and so neither targets nor pairs.
        if step.two_sided or step.paired or step.takes_pairs:
            raise StepError(f"{Sides.kind}: {step.kind} cannot stand on one side; put it before or after the sides")

    # The chain around this step normalizes, after all steps.
    return Chain(built, normalize=False)
