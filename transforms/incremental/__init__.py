"""Adding rows to a fitted chain, whose earlier rows are known only by stored moments."""

from transforms.incremental.stages import Stages
from transforms.incremental.update import update_chain

__all__ = ["Stages", "update_chain"]
