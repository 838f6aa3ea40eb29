"""Adding rows to a fitted chain, whose earlier rows are known only by stored moments."""

from lathe.transforms.incremental.stages import Stages
from lathe.transforms.incremental.update import update_chain

__all__ = ["Stages", "update_chain"]
