"""Fits on several processes or machines with Ray: workers encode shards and compute moments, the driver does the rest.

                  ┌─ worker: encodes shards ──────┐
driver ─ pool ────┤                               ├─ the workspace, a folder that driver and workers share
                  └─ worker: moments of blocks ───┘
"""

from lathe.training.distributed.engine import RayEngine, ray_engine

__all__ = ["RayEngine", "ray_engine"]
