"""Fits on several processes or machines with Ray: workers encode and compute moments, this process does the rest.

                  ┌─ worker: encodes shards ──────┐
driver ─ pool ────┤                               ├─ the workspace, a folder that all of them see
                  └─ worker: moments of blocks ───┘
"""

from lathe.training.distributed.engine import RayEngine, ray_engine

__all__ = ["RayEngine", "ray_engine"]
