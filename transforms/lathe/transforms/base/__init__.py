"""Base classes of all transforms: maps, fitting, parameter checks, signatures, training logs and checkpoints."""

from lathe.transforms.base.map import Inverse, Map, Side, Signature, Spec, apply, parameter_names, view_through
from lathe.transforms.base.query_pairs import QueryPairs, measure_relevance
from lathe.transforms.base.training import Checkpoint, CheckpointPath, TrainingConfig, TrainingLog
from lathe.transforms.base.transform import TRANSFORMS, FitContext, Transform, build_transform, restore_on_error
from lathe.transforms.base.validation import (
    FLAG,
    SEED,
    ParameterRule,
    Shape,
    number,
    one_of,
    or_none,
    or_word,
    training_rules,
    whole_number,
)

__all__ = [
    "Checkpoint",
    "CheckpointPath",
    "FLAG",
    "FitContext",
    "Inverse",
    "Map",
    "ParameterRule",
    "QueryPairs",
    "SEED",
    "Shape",
    "Side",
    "Signature",
    "Spec",
    "TRANSFORMS",
    "TrainingConfig",
    "TrainingLog",
    "Transform",
    "apply",
    "build_transform",
    "measure_relevance",
    "number",
    "one_of",
    "or_none",
    "or_word",
    "parameter_names",
    "restore_on_error",
    "training_rules",
    "view_through",
    "whole_number",
]
