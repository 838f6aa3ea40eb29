"""A model of the probability that a hit is right which needs the scores of a search alone, for stores of others."""

from typing import Self

import numpy as np

from lathe.transforms.errors import InputError
from lathe.transforms.relevance.model import (
    MIN_HITS,
    MIN_PRECISION,
    Array,
    RelevanceModel,
    Searches,
    apply_weights,
    fit_logistic,
    sigmoid,
)
from lathe.transforms.vectors import FloatArray


class ScoreModel:
    """Model of the probability that each hit of a search is right, from the scores of the search.

    The logit of hit i is a·sᵢ + b·(mean of s₂ … s₁₀) + c. First hits have other numbers than all others. A
    `RelevanceModel` knows more, which a vector store does not keep: the hubs of the rows and the background.

    Args:
        coefficients: a, b and c of first hits, and of all others, `(2, 3)`.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms.relevance import ScoreModel
        >>> model = ScoreModel(np.array([[40.0, -30.0, -9.0], [30.0, -25.0, -8.0]]))
        >>> model.predict_proba(np.linspace(0.8, 0.4, 50)[None]).shape
        (1, 50)
    """

    def __init__(self, coefficients: Array) -> None:
        self.coefficients = coefficients

    @classmethod
    def imitate(cls, model: RelevanceModel, searches: Searches) -> Self:
        """Return a model of scores, fitted to the probabilities that a fitted model gives the hits of searches.

        Args:
            model: a fitted model of the rows that are searched.
            searches: searches with as many hits as those to come, or more.
        """
        features = _measure_features(searches.scores)
        mean, scale = features.mean((0, 1)), features.std((0, 1))
        weights = fit_logistic(
            (features - mean) / scale, model.predict_proba(searches), np.zeros((2, 3)), MIN_PRECISION
        )
        weights[:, :-1] /= scale
        weights[:, -1] -= weights[:, :-1] @ mean
        return cls(weights)

    def predict_proba(self, scores: FloatArray) -> Array:
        """Return the probability that each hit is right, `(n, k)`.

        Args:
            scores: cosines of the hits in descending order, `(n, k)`.

        Raises:
            InputError: for fewer than ten hits.
        """
        if scores.shape[1] < MIN_HITS:
            raise InputError(f"a search must have at least {MIN_HITS} hits, got {scores.shape[1]}")
        return sigmoid(apply_weights(_measure_features(scores), self.coefficients))


def _measure_features(scores: FloatArray) -> Array:
    """Return the score of each hit and the mean of s₂ … s₁₀, `(n, k, 2)`."""
    others = scores[:, 1:MIN_HITS].mean(1, keepdims=True, dtype=np.float64)
    return np.stack([scores, np.broadcast_to(others, scores.shape)], axis=-1).astype(np.float64)
