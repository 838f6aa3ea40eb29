"""A chain as a scikit-learn transformer, for `Pipeline`, `GridSearchCV` and `set_output`.

This module alone imports scikit-learn, which is the extra `sklearn`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from lathe.transforms.chain import Chain, build_steps, parse_steps
from lathe.transforms.errors import StepError


class ChainTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Fit and apply a chain of transforms as a scikit-learn estimator.

    Outputs are float32. A chain that ends in codes outputs the floats that its codes stand for, which is what a search
    compares; `chain_.transform` gives the codes themselves.

    Args:
        steps: steps as `parse_steps` reads them, `"r2,pca:128"`, or as `build_steps` takes them,
            `[{"kind": "r2"}, {"kind": "pca", "dimensions": 128}]`.
        normalize: whether outputs are L2-normalized.
        dimensions: number of leading dimensions to output, if the chain is nested; None for all.

    Attributes:
        chain_: the fitted `Chain`.
        n_features_in_: number of dimensions of the fitted rows.

    Example:
        >>> import numpy as np
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.pipeline import make_pipeline
        >>> from lathe.transforms.sklearn import ChainTransformer
        >>> rows = np.random.default_rng(0).normal(size=(200, 8))
        >>> labels = rows[:, 0] > 0
        >>> pipeline = make_pipeline(ChainTransformer("r2,pca:4", normalize=False), LogisticRegression())
        >>> pipeline.fit(rows, labels).predict(rows).shape
        (200,)
    """

    def __init__(
        self,
        steps: str | Sequence[Mapping[str, Any]] = "r2",
        *,
        normalize: bool = True,
        dimensions: int | None = None,
    ) -> None:
        self.steps = steps
        self.normalize = normalize
        self.dimensions = dimensions

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Fit the chain of transforms to rows `(n, d)`, and return the estimator itself. Steps fitted on pairs raise.

        `y` is ignored.

        Raises:
            StepError: for steps that cannot be parsed, do not fit the dimensions, or learn from pairs.
            InputError: for rows that cannot be fitted on.
            ValueError: for rows that are not finite numbers `(n, d)`, with n and d of at least 2.
        """
        # A direction to remove or keep takes two dimensions and two rows that differ.
        limits = {"ensure_min_samples": 2, "ensure_min_features": 2}
        rows = validate_data(self, X, dtype=[np.float32, np.float64], **limits)
        steps = parse_steps(self.steps) if isinstance(self.steps, str) else build_steps(self.steps)

        for step in steps:
            if step.paired or step.takes_pairs:
                raise StepError(f"{step.kind} is fitted on pairs, which scikit-learn's fit does not pass")

        chain = Chain(steps, self.normalize).fit(rows)
        chain.require_dimensions(self.dimensions)
        self.chain_ = chain
        self._n_features_out = self.dimensions or chain.output_dimensions

        return self

    def transform(self, X: Any) -> NDArray[np.float32]:  # noqa: N803
        """Transform rows `(n, d)` by the fitted chain, and return float32 rows `(n, k)`.

        Byte codes are decoded to floats.

        Raises:
            sklearn.exceptions.NotFittedError: before `fit`.
            ValueError: for rows that are not finite numbers, or of other dimensions than fitted on.
        """
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False, dtype=[np.float32, np.float64])
        floats: NDArray[np.float32] = self.chain_.floats(rows, self.dimensions)
        return floats

    def __sklearn_tags__(self) -> Tags:
        """Return scikit-learn's tags of the estimator, which say that outputs are float32 for inputs of any dtype."""
        tags: Tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags
