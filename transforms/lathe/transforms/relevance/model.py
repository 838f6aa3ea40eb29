"""A model of the probability that a hit of a search is right: a logistic regression of three features of the hit.

With the cosines s₁ ≥ s₂ ≥ … of a query's hits, the features of hit i are

    standard score   (sᵢ − m)/σ, with mean m and standard deviation σ of the query's cosines with all rows
    gap              sᵢ minus the mean of s₂ … s₁₀
    margin           sᵢ minus the hub of the row: the mean cosine of the row with its ten nearest references

The references are queries of a log or, without one, rows. The margin is half of CSLS (Conneau and others, *Word
Translation Without Parallel Data*, 2018, Eq. 2): hubs are near many queries, and a cosine with them says less.
Each feature is divided by its standard deviation over the first hits of unjudged searches, so that the weights carry
over to other encoders and texts. The weights that ship were learnt by `research/scores`.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save

from lathe.transforms.errors import ArtifactError, InputError, NotFittedError
from lathe.transforms.files import make_root, parse_json_object, read_plain_file, replace_synced
from lathe.transforms.statistics import Gaussian, unit_moments, unit_rows
from lathe.transforms.vectors import FloatArray, Vectors, as_numpy, finite_blocks, require_finite

Array = NDArray[np.float64]

References = Literal["queries", "rows"]
"""What the hub of a row is measured with."""

NEAREST = 10
"""Number of nearest references whose mean cosine is the hub of a row (Conneau and others, 2018)."""

MIN_HITS = 10
"""Minimum number of hits of a search, which the gap is measured with."""

MIN_SEARCHES = 30
"""Minimum number of searches to fit on: the standard deviation of a feature is then known to 13 %."""

MIN_LOG = 100
"""Minimum number of queries as references. Hubs of 20 are so low that the calibration error is .16 in place of .13."""

MAX_REFERENCES = 2048
"""Maximum number of references, 3 MB at d=384. 1,000 of 3,000 rows gave the same AUROC as all."""

MAX_ROWS = 20_000
"""Maximum number of evenly spaced rows from which the mean and the covariance of the rows are estimated."""

PRIOR_STRENGTH = 20.0
"""Weight of the shipped weights when others are fitted on judgements, as the precision of a Gaussian prior."""

EQUAL = 1 - 1e-5
"""Cosine from which on two rows are the same one, but for rounding."""

BACKGROUND = ("mean", "directions", "variances")
FITTED = ("scale", "weights")

NEWTON_STEPS = 50
"""Maximum steps of Newton's method, which converges in less than ten."""

CONVERGED = 1e-8
"""Step of a weight at which Newton's method ends."""

MIN_PRECISION = 1e-3
"""Precision of the prior of the intercept, which keeps it finite if all hits are wrong."""

FEATURES = 3
"""Number of features of a hit."""

TRAINED_BASE_RATE = 0.5
"""Share of queries that had an answer in the searches from which the shipped weights were learnt."""

WEIGHTS = Path(__file__).with_name("weights.json")
"""File of the shipped weights, which `research.scores` writes."""

TENSORS = "relevance.safetensors"
DESCRIPTION = "relevance.json"
MAX_DESCRIPTION_BYTES = 100_000


@dataclass(frozen=True, eq=False)
class Searches:
    """The first k hits of n searches.

    Attributes:
        queries: unit vectors, `(n, d)`.
        scores: cosines of the hits in descending order, `(n, k)`.
        hubs: hubs of the rows that were hit, `(n, k)`, by `RelevanceModel.measure_hubs`.

    Raises:
        InputError: for fewer than ten hits, or shapes that differ.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms.relevance import Searches
        >>> cosines = np.linspace(0.9, 0.1, 10, dtype=np.float32)[None]
        >>> Searches(np.eye(1, 16, dtype=np.float32), cosines, hubs=0.5 * cosines).scores.shape
        (1, 10)
    """

    queries: FloatArray
    scores: FloatArray
    hubs: FloatArray

    def __post_init__(self) -> None:
        shape = self.scores.shape
        if self.queries.ndim != 2 or len(shape) != 2 or self.hubs.shape != shape or len(self.queries) != shape[0]:
            raise InputError(
                f"queries (n, d), scores (n, k) and hubs (n, k) do not correspond: {self.queries.shape}, {shape} and "
                f"{self.hubs.shape}"
            )
        if shape[1] < MIN_HITS:
            raise InputError(f"a search must have at least {MIN_HITS} hits, got {shape[1]}")

    def select(self, rows: NDArray[np.int64]) -> "Searches":
        """Return some of the searches, by their numbers."""
        return Searches(self.queries[rows], self.scores[rows], self.hubs[rows])


class RelevanceModel:
    """Model of the probability that each hit of a search is right, which needs no judgement.

    Args:
        background: mean and covariance of the rows that are searched.
        references: unit vectors that hubs are measured with, `(m, d)`.
        kind: whether the references are queries or rows.
        base_rate: assumed share of queries that have an answer; without judgements it cannot be known.

    Attributes:
        scale: standard deviations of the features over the searches of `fit`, `(3,)`.
        weights: weights of the three features and intercept, `(2, 4)`: of first hits, and of all others.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms.relevance import RelevanceModel, Searches
        >>> rows = np.random.default_rng(0).normal(size=(500, 16)).astype(np.float32)
        >>> rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        >>> model = RelevanceModel.from_rows(rows)
        >>> cosines = rows[:100] @ rows[100:].T
        >>> hits = np.argsort(-cosines)[:, :10]
        >>> hubs = model.measure_hubs(rows[100:])
        >>> searches = Searches(rows[:100], np.take_along_axis(cosines, hits, 1), hubs[hits])
        >>> model.fit(searches).predict_proba(searches).shape
        (100, 10)
    """

    def __init__(
        self, background: Gaussian, references: NDArray[np.float32], kind: References, base_rate: float = 0.5
    ) -> None:
        self.background = background
        self.references = references
        self.kind: References = kind
        self.base_rate = base_rate
        self.scale: Array | None = None
        self.weights, self.first_rate = read_weights(kind)

    @classmethod
    def from_rows(cls, rows: Vectors, queries: FloatArray | None = None, base_rate: float = 0.5) -> Self:
        """Describe the rows that are searched, and choose the references, before `fit`. Too few rows or queries raise.

        Args:
            rows: vectors that are searched, `(n, d)`.
            queries: vectors of unjudged queries `(m, d)`, other ones than those of `fit`; None takes rows.
            base_rate: assumed share of queries that have an answer.

        Raises:
            InputError: for NaN or inf, other dimensions, fewer than eleven rows or 100 queries, or a share outside
                (0, 1).
        """
        if not 0 < base_rate < 1:
            raise InputError(f"the share of queries that have an answer must be between 0 and 1, got {base_rate}")
        if rows.shape[0] <= NEAREST:
            raise InputError(f"more than {NEAREST} rows are needed, got {rows.shape[0]}")
        if queries is not None and len(queries) < MIN_LOG:
            raise InputError(f"at least {MIN_LOG} queries are needed, got {len(queries)}; leave them out to use rows")
        background = Gaussian.fit(unit_moments(_sample(rows, MAX_ROWS)))
        references = normalize(_sample(rows if queries is None else queries, MAX_REFERENCES))
        if references.shape[1] != background.dimensions:
            raise InputError(f"queries have {references.shape[1]} dimensions, rows {background.dimensions}")
        return cls(background, references, "rows" if queries is None else "queries", base_rate)

    def measure_hubs(self, rows: Vectors) -> NDArray[np.float32]:
        """Return the hub of each row, `(n,)`: its mean cosine with its ten nearest references. Other dimensions raise.

        If the references are rows, a row is not its own neighbour.

        Raises:
            InputError: for NaN or inf, or other dimensions than those of the references.
        """
        if rows.shape[1] != self.references.shape[1]:
            raise InputError(f"rows must have {self.references.shape[1]} dimensions, got {rows.shape[1]}")
        references = torch.from_numpy(self.references)
        hubs = []
        for block in finite_blocks(rows):
            cosines = torch.from_numpy(normalize(block)) @ references.T
            if self.kind == "rows":
                cosines[cosines > EQUAL] = -1
            hubs.append(cosines.topk(NEAREST).values.mean(1).numpy())
        return np.concatenate(hubs)

    def fit(self, searches: Searches) -> Self:
        """Learn the scales of the features from unjudged searches, and take shipped weights. Too few searches raise.

        Args:
            searches: searches like those to come; their queries are not among the references.

        Raises:
            InputError: for fewer than 30 searches, NaN or inf, or scores that are not in descending order.
        """
        if len(searches.queries) < MIN_SEARCHES:
            raise InputError(f"at least {MIN_SEARCHES} searches are needed, got {len(searches.queries)}")
        for block in (searches.queries, searches.scores, searches.hubs):
            require_finite(block)
        if (searches.scores[:, 1:] > searches.scores[:, :-1]).any():
            raise InputError("the scores of a search must be in descending order")

        features = self._measure_features(searches)
        # Without their means, collections in which many hits are right would look like those in which few are.
        self.scale = features[:, 0].std(0)
        if not (self.scale > 0).all():
            raise InputError("the scores of all searches are the same")
        self.weights, self.first_rate = read_weights(self.kind)
        return self

    def fit_weights(self, searches: Searches, relevant: NDArray[np.bool_]) -> Self:
        """Fit the weights on judged searches, after `fit`, with shipped weights as prior. Other shapes raise.

        The shipped weights are the mean of a Gaussian prior. `base_rate` is then not used.

        Args:
            searches: judged searches.
            relevant: whether each hit is relevant, `(n, k)`.

        Raises:
            InputError: for judgements of another shape.
            NotFittedError: before `fit`.
        """
        if relevant.shape != searches.scores.shape:
            raise InputError(f"judgements must be {searches.scores.shape}, got {relevant.shape}")
        self.weights = fit_logistic(self.standardize(searches), relevant, read_weights(self.kind)[0], PRIOR_STRENGTH)
        self.first_rate = None
        return self

    def standardize(self, searches: Searches) -> Array:
        """Return the features of all hits in units of their scales, `(n, k, 3)`. An unfitted model raises.

        Raises:
            NotFittedError: before `fit`.
        """
        if self.scale is None:
            raise NotFittedError("the model must be fitted on searches before it is applied")
        features = self._measure_features(searches)
        features /= self.scale
        return features

    def predict_proba(self, searches: Searches) -> Array:
        """Return the probability that each hit is right, `(n, k)`. An unfitted model, other dimensions or NaN raise.

        Raises:
            NotFittedError: before `fit`.
            InputError: for other dimensions than those of the rows, NaN or inf.
        """
        logits = apply_weights(self.standardize(searches), self.weights)
        if self.first_rate is not None:
            # A base rate changes the odds of right hits as much as it changes those of a right first hit.
            rate = self.first_rate * self.base_rate / TRAINED_BASE_RATE
            logits += math.log(rate / (1 - rate) * (1 - self.first_rate) / self.first_rate)
        probabilities = sigmoid(logits)
        if not math.isfinite(probabilities.sum()):
            raise InputError("queries, scores or hubs hold NaN or inf")
        return probabilities

    @property
    def payload(self) -> bytes:
        """Content of the file relevance.safetensors, as bytes."""
        arrays = {name: getattr(self.background, name) for name in BACKGROUND}
        arrays |= {name: getattr(self, name) for name in ("references", *FITTED)}
        return save({name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()})

    def describe(self) -> dict[str, Any]:
        """Return what `from_bytes` needs besides `payload`, as a dict that can be serialized as JSON."""
        return {
            "sha256": hashlib.sha256(self.payload).hexdigest(),
            "kind": self.kind,
            "base_rate": self.base_rate,
            "first_rate": self.first_rate,
        }

    @classmethod
    def from_bytes(cls, payload: bytes, described: Mapping[str, Any]) -> Self:
        """Rebuild a model from `payload` and the dict of `describe`. Altered bytes or arrays of no model raise.

        Raises:
            ArtifactError: if the bytes were altered, or are not those of a fitted model.
        """
        try:
            if hashlib.sha256(payload).hexdigest() != described["sha256"]:
                raise ArtifactError("the relevance model was truncated or altered: the SHA-256 does not match")
            arrays = {name: tensor.numpy() for name, tensor in load(payload).items()}
            background = Gaussian(*(arrays[name] for name in BACKGROUND))
            model = cls(background, arrays["references"], described["kind"], described["base_rate"])
            model.scale, model.weights = (arrays[name] for name in FITTED)
            model.first_rate = described["first_rate"]
        except (SafetensorError, LookupError, TypeError) as error:
            raise ArtifactError(f"the relevance model cannot be read: {error!r}") from error
        d = background.dimensions
        shapes = [(FEATURES,), (2, FEATURES + 1), (len(model.references), d), (len(background.directions), d)]
        found = [array.shape for array in (model.scale, model.weights, model.references, background.directions)]
        rates = [model.base_rate, model.base_rate if model.first_rate is None else model.first_rate]
        if found != shapes or not all(np.isfinite(array).all() for array in arrays.values()):
            raise ArtifactError("the relevance model has arrays of other shapes than a fitted one, or NaN")
        if not all(isinstance(rate, float) and 0 < rate < 1 for rate in rates) or not (model.scale > 0).all():
            raise ArtifactError("the relevance model has rates or scales that no fitted one has")
        return model

    def save(self, folder: Path) -> None:
        """Write relevance.safetensors and relevance.json into a folder, created if missing. An unfitted model raises.

        Raises:
            NotFittedError: before `fit`.
            OSError: if they cannot be written.
        """
        if self.scale is None:
            raise NotFittedError("the model must be fitted on searches before it is saved")
        make_root(folder)
        replace_synced(folder / TENSORS, self.payload)
        # The description comes last: a folder of which only the tensors are new is refused by their digest.
        replace_synced(folder / DESCRIPTION, json.dumps(self.describe(), indent=1).encode())

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a model that `save` wrote, and verify its digest. A missing or damaged file raises.

        Raises:
            ArtifactError: if a file is missing or damaged.
        """
        try:
            described = parse_json_object(read_plain_file(folder / DESCRIPTION, MAX_DESCRIPTION_BYTES))
            return cls.from_bytes(read_plain_file(folder / TENSORS), described)
        except ArtifactError:
            raise
        except (OSError, ValueError) as error:
            raise ArtifactError(f"there is no relevance model in {folder.name} that can be read: {error}") from error

    def _measure_features(self, searches: Searches) -> Array:
        """Return the three features of all hits, `(n, k, 3)`. Queries of other dimensions than the rows raise."""
        queries, scores = searches.queries, searches.scores
        if queries.shape[1] != self.background.dimensions:
            raise InputError(f"queries must have {self.background.dimensions} dimensions, got {queries.shape[1]}")
        mean, deviation = self.background.measure_products(queries)
        features = np.empty((FEATURES, *scores.shape))
        features[0] = (scores - mean[:, None]) / deviation[:, None]
        # The sum, as `mean` takes three times as long for so few numbers.
        features[1] = scores - scores[:, 1:MIN_HITS].sum(1, keepdims=True) / (MIN_HITS - 1)
        features[2] = scores - searches.hubs
        return features.transpose(1, 2, 0)


def fit_logistic(features: Array, relevant: NDArray[np.bool_] | Array, prior: Array, strength: float) -> Array:
    """Return the logistic weights of first hits and of all others, `(2, f + 1)`, fitted by Newton's method.

    Args:
        features: standardized features of hits, `(n, k, f)`.
        relevant: whether each hit is relevant, or the probability that it is, `(n, k)`.
        prior: mean of the Gaussian prior of the weights, `(2, f + 1)`; intercepts have none.
        strength: precision of the prior.
    """
    fitted = prior.copy()
    for head, hits in enumerate((slice(0, 1), slice(1, None))):
        rows = features[:, hits].reshape(-1, features.shape[-1])
        rows = np.column_stack([rows, np.ones(len(rows))])
        right = relevant[:, hits].reshape(-1)
        precision = np.append(np.full(features.shape[-1], strength), MIN_PRECISION)
        for _ in range(NEWTON_STEPS):
            probability = sigmoid(rows @ fitted[head])
            gradient = rows.T @ (probability - right) + precision * (fitted[head] - prior[head])
            curvature = (rows * (probability * (1 - probability))[:, None]).T @ rows + np.diag(precision)
            step = np.linalg.solve(curvature, gradient)
            fitted[head] -= step
            if np.abs(step).max() < CONVERGED:
                break
    return fitted


def apply_weights(features: Array, weights: Array) -> Array:
    """Return the logits `(n, k)` of hits with features `(n, k, f)`. Weights are `(2, f + 1)`."""
    # Feature by feature, as they lie in memory: a third less time than a product with the last axis.
    by_feature = features.transpose(2, 0, 1).reshape(features.shape[-1], -1)
    of_both = (weights[:, :-1] @ by_feature + weights[:, -1:]).reshape(2, *features.shape[:2])
    logits: Array = of_both[1]
    logits[:, 0] = of_both[0, :, 0]
    return logits


def sigmoid(logits: Array) -> Array:
    """Return 1/(1 + e^−x) without overflow."""
    probabilities: Array = np.tanh(0.5 * logits)
    probabilities += 1
    probabilities *= 0.5
    return probabilities


@lru_cache
def read_weights(kind: References) -> tuple[Array, float | None]:
    """Read the shipped weights `(2, 4)` and the share of right first hits in the searches they were learnt from."""
    stored = json.loads(WEIGHTS.read_bytes())[kind]
    return np.array(stored["weights"]), stored["first_rate"]


def normalize(rows: FloatArray) -> NDArray[np.float32]:
    """Return rows `(n, d)` in float32 and L2-normalized."""
    return np.asarray(unit_rows(torch.from_numpy(rows.astype(np.float32))).numpy())


def _sample(vectors: Vectors, most: int) -> FloatArray:
    """Return up to `most` evenly spaced rows: the first rows of an ordered corpus would describe only its beginning."""
    count = vectors.shape[0]
    return as_numpy(vectors[np.linspace(0, count - 1, min(count, most)).astype(int)])
