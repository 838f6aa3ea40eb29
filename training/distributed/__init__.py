"""Fits on several processes or machines, by Ray: encoding and moments go to workers, the rest stays here.

                  ┌─ worker: encodes shards ──────┐
driver ─ pool ────┤                               ├─ the workspace, a folder that all of them see
                  └─ worker: moments of blocks ───┘
"""

from training.distributed.engine import RayEngine, ray_engine

__all__ = ["RayEngine", "ray_engine"]
