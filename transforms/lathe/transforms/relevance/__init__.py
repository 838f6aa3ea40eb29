"""Probabilities that the hits of a search are right, from features that need no judgement, and how good they are."""

from lathe.transforms.relevance.model import (
    MIN_HITS,
    NEAREST,
    RelevanceModel,
    Searches,
    fit_logistic,
    read_weights,
)
from lathe.transforms.relevance.report import ProbabilityReport, evaluate_probabilities, measure_auroc
from lathe.transforms.relevance.scores import ScoreModel

__all__ = [
    "MIN_HITS",
    "NEAREST",
    "ProbabilityReport",
    "RelevanceModel",
    "ScoreModel",
    "Searches",
    "evaluate_probabilities",
    "fit_logistic",
    "measure_auroc",
    "read_weights",
]
