"""Base classes of all transforms: maps, fitting, parameter checks, signatures, training logs and checkpoints."""

from lathe.transforms.base.checkpoint import Checkpoint, CheckpointPath
from lathe.transforms.base.map import Inverse, Map, Side, Spec, apply, parameter_names
from lathe.transforms.base.query_pairs import QueryPairs, measure_relevance
from lathe.transforms.base.registry import TRANSFORMS, build_transform
from lathe.transforms.base.restored import Shape, require_entries
from lathe.transforms.base.signature import Signature
from lathe.transforms.base.training_log import TrainingConfig, TrainingLog
from lathe.transforms.base.transform import FitContext, Transform, restore_on_error
from lathe.transforms.base.transformed_view import TransformedView, view_through
from lathe.transforms.base.validation import (
    require_between,
    require_choice,
    require_flag,
    require_seed,
    require_training,
    require_whole,
)

__all__ = [
    "Checkpoint",
    "CheckpointPath",
    "FitContext",
    "Inverse",
    "Map",
    "QueryPairs",
    "Shape",
    "Side",
    "Signature",
    "Spec",
    "TRANSFORMS",
    "TrainingConfig",
    "TrainingLog",
    "Transform",
    "TransformedView",
    "apply",
    "build_transform",
    "measure_relevance",
    "parameter_names",
    "require_between",
    "require_choice",
    "require_entries",
    "require_flag",
    "require_seed",
    "require_training",
    "require_whole",
    "restore_on_error",
    "view_through",
]
