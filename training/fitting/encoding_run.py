"""What an engine is given to encode: a plan's shards, and where their vectors go."""

from pathlib import Path

from training.encoder.encoder import Encoder
from training.fitting.encoded_shards import Position, position_in, shard_folder
from training.sources.shards import Shard
from training.sources.source import Plan, Source


class Run:
    """One go through a plan's shards.

    Args:
        source: whose plan it is.
        plan: what to encode.
        encoder: None for vectors.
        root: of the shards' folders.
    """

    def __init__(self, source: Source, plan: Plan, encoder: Encoder | None, root: Path) -> None:
        self.source, self.plan, self.encoder, self.root = source, plan, encoder, root
        self.folders = {shard: shard_folder(root, shard, source.field, encoder) for shard in plan.shards}
        self.total = sum(shard.rows for shard in plan.shards)

    @property
    def positions(self) -> dict[Shard, Position]:
        """How far each shard is."""
        return {shard: position_in(folder) for shard, folder in self.folders.items()}
