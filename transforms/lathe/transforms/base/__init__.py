"""Base classes of all transforms: maps, fitting, parameter checks, signatures, training logs and checkpoints."""

from lathe.transforms.base.map import (
    Inverse,
    Map,
    Side,
    Signature,
    Spec,
    TransformedView,
    apply,
    parameter_names,
    view_through,
)
from lathe.transforms.base.query_pairs import QueryPairs, measure_relevance
from lathe.transforms.base.training import Checkpoint, CheckpointPath, TrainingConfig, TrainingLog
from lathe.transforms.base.transform import TRANSFORMS, FitContext, Transform, build_transform, restore_on_error
from lathe.transforms.base.validation import (
    Shape,
    require_between,
    require_choice,
    require_entries,
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
