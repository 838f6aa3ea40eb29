"""Query adapter: a linear map of queries only, learned from queries and their relevant documents."""

import math
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from lathe.transforms.base import (
    FitContext,
    Map,
    QueryPairs,
    Signature,
    TrainingConfig,
    Transform,
    measure_relevance,
    number,
    training_rules,
    whole_number,
)
from lathe.transforms.errors import InputError
from lathe.transforms.learned.difference import make_config, train_difference
from lathe.transforms.linear import Affine, Selection
from lathe.transforms.linear.affine import InverseAffine
from lathe.transforms.statistics import Moments, moments_of, unit_rows
from lathe.transforms.vectors import FloatArray, Vectors

MIN_QUERIES = 200
"""Minimum number of queries; with fewer, what is gained on other queries is not told from chance."""

VALIDATION_SHARE = 0.2
"""Share of the queries that are held out from training to decide when to stop."""

MIN_GAIN = 0.5
"""Gain in nDCG@10 on the held-out queries, in its standard errors, up to which the identity is kept."""

MINED = 32
"""Number of negatives that are mined for each query: its nearest documents, without relevant ones."""

BLOCK_SCORES = 20_000_000
"""Maximum number of scores in memory while negatives are mined: 80 MB."""


class QueryAdapter(Transform):
    """Linear map q ↦ Wq of queries, `(n, d)` to `(n, d)`, learned from queries and relevant documents.

    Documents stay as they are, so none has to be encoded again.

    W minimizes InfoNCE (van den Oord et al., arXiv 1807.03748) of queries q with a relevant document d⁺ each,
    −log exp(⟨Wq/‖Wq‖, d⁺⟩/τ) / Σ_d exp(⟨Wq/‖Wq‖, d⟩/τ), over unit documents d: the batch's relevant documents, and
    mined ones, drawn for each query from its 32 nearest documents. Other documents that are relevant to q are left
    out of its sum. AdamW starts at the identity, its weight decay draws W back to it, and the W of the lowest loss on a
    fifth of the queries, which are not trained on, is kept. The identity is kept instead unless W raises nDCG@10 of
    these queries, over the documents of the pairs, by more than half of the gain's standard error, paired by query.

    Place it first to map the encoder's queries, before steps that both sides pass.

    Args:
        temperature: τ.
        negatives: number of mined negatives of a query in a batch; 0 for the batch's documents alone. Where judgements
            are few, many a near document is relevant and not known to be.
        steps: maximum number of training steps.
        batch: number of queries in a batch.
        learning_rate: peak learning rate.
        weight_decay: of W − I, as AdamW applies it.
        seed: of the held-out queries and the batches.

    Attributes:
        weight: W, `(d, d)`.
        query_count: number of queries that W was learned from, held-out ones included.
        heldout_gain: gain of the trained W in nDCG@10 on the held-out queries and its standard error, also where the
            identity was kept instead; None before the fit and after loading.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import Chain, QueryAdapter
        >>> from lathe.transforms.base import QueryPairs
        >>> random = np.random.default_rng(0)
        >>> documents, queries = random.normal(size=(2, 250, 8)).astype(np.float32)
        >>> pairs = QueryPairs(queries, documents, relevant=np.column_stack([np.arange(250), np.arange(250)]))
        >>> chain = Chain([QueryAdapter(steps=10)]).fit(documents, pairs=pairs)
        >>> chain.transform_queries(queries).shape
        (250, 8)
    """

    kind = "query_adapter"
    inverse_kind = "exact"  # documents are not changed
    parameter_rules = {
        "temperature": number(1e-3, 10),
        "negatives": whole_number(0, MINED),
        **training_rules(),
        "weight_decay": number(0, 100),
    }
    takes_pairs = True
    two_sided = True
    queries_only = True
    shapes = {"weight": ("d", "d"), "query_count": (1,)}
    weight: Tensor
    query_count: Tensor
    entry_ranges = {"query_count": (0, math.inf)}

    def __init__(
        self,
        temperature: float = 0.05,
        negatives: int = 0,
        steps: int = 400,
        batch: int = 256,
        learning_rate: float = 3e-4,
        weight_decay: float = 10.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.negatives = negatives
        self.steps = steps
        self.batch = batch
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.seed = seed
        self.query_count = torch.empty(0, dtype=torch.int64)
        self.heldout_gain: tuple[float, float] | None = None

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the signature (dimensions, rank) of the inputs, which the map does not change."""
        return inputs

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Train and store the matrix W for queries, or the identity without held-out gain. Too few queries raise.

        The rows in `data` give only the dimensions.

        Raises:
            InputError: for fewer than `MIN_QUERIES` distinct queries, or other dimensions than the rows.
        """
        assert context.pairs is not None  # `fit` has seen to it
        pairs = context.pairs
        d = data.dimensions if isinstance(data, Moments) else data.shape[1]
        distinct = _count_distinct_queries(self.kind, pairs, d)
        config = make_config(self, max(1, int(distinct * VALIDATION_SHARE)))
        batches = PairBatches(pairs, config, self.negatives, self.seed, self.device)
        identity = torch.eye(d, device=self.device)
        queries, documents = (_unit_tensor(side, self.device) for side in (pairs.queries, pairs.documents))

        def loss_of(weight: Tensor, batch: Tensor) -> Tensor:
            adapted_queries = queries[batch[:, 0]] @ weight.T
            # (b, 1 + k) rows to distinct documents, so that each is scored once.
            candidates, columns = torch.unique(batch[:, 1:], return_inverse=True)
            scores = functional.normalize(adapted_queries, dim=1) @ documents[candidates].T / self.temperature
            excluded = batches.is_known(batch[:, :1], candidates)
            excluded.scatter_(1, columns[:, :1], False)
            return functional.cross_entropy(scores.masked_fill(excluded, -torch.inf), columns[:, 0])

        mean = moments_of(pairs.documents).mean
        weight = train_difference(self, identity, loss_of, batches, config, context, pairs.queries, mean)
        held_out = replace(pairs.select(batches.heldout_rows), documents=documents.cpu().numpy())
        adapted = replace(held_out, queries=held_out.queries @ weight.T.cpu().numpy())
        # The loss ranks documents by their scores' differences, and so may fall while rankings get worse.
        gains = measure_relevance(adapted)[0] - measure_relevance(held_out)[0]
        gain, error = float(gains.mean()), float(gains.std(ddof=1)) / len(gains) ** 0.5 if len(gains) > 1 else np.inf
        self.heldout_gain = (gain, error)
        self.weight = weight if gain > MIN_GAIN * error else identity
        self.query_count = torch.tensor([len(pairs)])

    def forward(self, x: Tensor) -> Tensor:
        """Return a copy of documents `(n, d)`.

        Queries are mapped by `query_map`.
        """
        return x.clone()

    def primitives(self) -> list[Map]:
        """Return a list of one selection of all columns, which leaves documents as they are."""
        d = self.weight.shape[0]
        return [Selection(d, torch.arange(d, device=self.weight.device), d)]

    def query_map(self) -> Affine:
        """Return the map of queries, q ↦ Wq, as an `Affine`."""
        return Affine(self.weight)

    def inverse(self) -> Map:
        """Return the identity as a map, because documents are not changed."""
        return InverseAffine(None, self.weight.new_zeros(len(self.weight)))

    def fit_warnings(self) -> list[str]:
        """Return a list with one warning if the identity was kept because no trained map was better, else []."""
        if not torch.equal(self.weight.cpu(), torch.eye(len(self.weight))):
            return []

        measured = ""
        if self.heldout_gain is not None:
            gain, error = self.heldout_gain
            measured = f": the trained one changes nDCG@10 by {gain:+.4f} ({error:.4f})"

        return [
            f"{self.kind} leaves queries as they are: on queries held out from its training, no map gained more than "
            f"half of its standard error{measured}"
        ]


class PairBatches:
    """Sampler of batches of queries, each with a relevant document and mined negatives, repeatable by seed and step.

    Queries with equal vectors are held out together: an encoder may give one vector to different texts.

    Args:
        pairs: queries with their documents.
        config: sets the batch size and the number of held-out queries.
        negatives: number of mined negatives of each query.
        seed: seed of the held-out queries and of the batches.
        device: device of the returned batches.

    Attributes:
        heldout_rows: rows of the queries that are not trained on, ascending.
    """

    def __init__(
        self, pairs: QueryPairs, config: TrainingConfig, negatives: int, seed: int, device: torch.device
    ) -> None:
        self.seed, self.device, self.negatives = seed, device, negatives
        numbers: dict[bytes, int] = {}
        # Queries with one vector are one group: held out and trained on, they would leak.
        group = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in pairs.queries])
        order = np.random.default_rng(seed).permutation(len(numbers))
        held = np.isin(group, order[: config.heldout])
        self.heldout_rows = np.flatnonzero(held)
        self._trained = np.flatnonzero(~held)
        self._size = min(config.batch, len(self._trained))
        by_query = pairs.relevant[np.lexsort((pairs.relevant[:, 1], pairs.relevant[:, 0]))]
        # As in a sparse matrix by rows: the relevant documents of query q are _answers[_first[q] : _first[q + 1]].
        self._answers, self._first = by_query[:, 1], np.searchsorted(by_query[:, 0], np.arange(len(pairs) + 1))
        self._documents = len(pairs.documents)
        # One number for each pair of query and document that is not a negative, to look up many pairs at once.
        known = np.concatenate([pairs.relevant, pairs.excluded])
        self._keys = torch.from_numpy(np.unique(known[:, 0] * self._documents + known[:, 1])).to(device)
        self._mined = self._mine(pairs) if negatives else np.zeros((len(pairs), 0), np.int64)

    def sample(self, step: int) -> Tensor:
        """Return the training batch of a step as row numbers `(b, 2 + k)`.

        Each row has a query, one of its relevant documents, and k mined negatives.
        """
        # Seeded by the step: a resumed training draws the batches that it would have drawn without a break.
        generator = np.random.default_rng([self.seed, step])
        rows = generator.choice(self._trained, self._size, replace=False)
        counts = self._first[rows + 1] - self._first[rows]
        # Answers are stored query after query: the answers to a query begin at _first[query].
        answers = self._answers[self._first[rows] + generator.integers(counts)]
        columns = generator.random((len(rows), self._mined.shape[1])).argsort(axis=1)[:, : self.negatives]
        negatives = np.take_along_axis(self._mined[rows], columns, axis=1)
        return torch.from_numpy(np.column_stack((rows, answers, negatives))).to(self.device)

    def heldout(self) -> Tensor:
        """Return the held-out queries as row numbers `(h, 2 + k)`.

        Each row has a query, its first relevant document, and its k nearest negatives.
        """
        rows = self.heldout_rows
        answers, negatives = self._answers[self._first[rows]], self._mined[rows, : self.negatives]
        return torch.from_numpy(np.column_stack((rows, answers, negatives))).to(self.device)

    def is_known(self, queries: Tensor, documents: Tensor) -> Tensor:
        """Return a mask `(b, c)` that is true where a document is relevant to a query or excluded from its results.

        Queries `(b, 1)` and documents `(c,)` are given by their row numbers.
        """
        keys = queries * self._documents + documents
        positions = torch.searchsorted(self._keys, keys).clamp_max_(len(self._keys) - 1)
        return self._keys[positions] == keys

    def _mine(self, pairs: QueryPairs) -> NDArray[np.int64]:
        """Return the nearest documents `(n, k)` of each query that are neither relevant nor excluded. k may be 0.

        They are row numbers, nearest first. k is `MINED`, or fewer if fewer documents are left; it may be 0.
        """
        queries, documents = (_unit_tensor(side, self.device) for side in (pairs.queries, pairs.documents))
        of_queries = torch.div(self._keys, len(documents), rounding_mode="floor")
        most_known = int(torch.bincount(of_queries).max())
        count = min(MINED, len(documents) - most_known)
        if count <= 0:
            return np.zeros((len(pairs), 0), np.int64)

        nearest = []
        step = max(1, BLOCK_SCORES // len(documents))
        for start in range(0, len(queries), step):
            scores = queries[start : start + step] @ documents.T
            # Keys are in the order of queries, so the keys of a block are neighbours.
            begin, end = torch.searchsorted(of_queries, torch.tensor([start, start + step], device=self.device))
            keys = self._keys[begin:end]
            scores[keys // self._documents - start, keys % self._documents] = -torch.inf
            nearest.append(scores.topk(count, dim=1).indices.cpu().numpy())

        return np.concatenate(nearest)


def _count_distinct_queries(kind: str, pairs: QueryPairs, dimensions: int) -> int:
    """Return the number of queries with different vectors. Fewer than `MIN_QUERIES`, or other dimensions, raise.

    Raises:
        InputError: for fewer than `MIN_QUERIES` of them, or vectors of other than `dimensions` dimensions.
    """
    for name, vectors in (("queries", pairs.queries), ("documents", pairs.documents)):
        if vectors.shape[1] != dimensions:
            raise InputError(
                f"{kind}: the {name} of the pairs have {vectors.shape[1]} dimensions, the rows {dimensions}"
            )

    distinct = len({row.tobytes() for row in pairs.queries})
    if distinct < MIN_QUERIES:
        raise InputError(
            f"{kind} needs at least {MIN_QUERIES} different queries with a relevant document, these are {distinct}: "
            "fewer do not tell a gain from chance"
        )

    return distinct


def _unit_tensor(vectors: FloatArray, device: torch.device) -> Tensor:
    """Return rows `(n, d)` L2-normalized, as a float32 tensor on the device."""
    return unit_rows(torch.from_numpy(np.ascontiguousarray(vectors, np.float32)).to(device))
