"""Unit of work of an engine: the shards of a plan, and the folders for their vectors."""

from pathlib import Path

from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.fitting.encoded_shards import Position, read_position, shard_folder
from lathe.training.sources.shards import Shard
from lathe.training.sources.source import Plan, Source


class EncodingRun:
    """Encoding of the shards of a plan.

    Args:
        source: the source of the plan.
        plan: the shards to encode.
        encoder: None for vectors without an encoder.
        root: folder for the shards' folders.

    Attributes:
        folders: folder of each shard.
        total: number of rows of all shards.
    """

    def __init__(self, source: Source, plan: Plan, encoder: TextEncoder | None, root: Path) -> None:
        self.source, self.plan, self.encoder, self.root = source, plan, encoder, root
        self.folders = {shard: shard_folder(root, shard, source.field, encoder) for shard in plan.shards}
        self.total = sum(shard.rows for shard in plan.shards)

    @property
    def positions(self) -> dict[Shard, Position]:
        """Position of each shard, read from its folder."""
        return {shard: read_position(folder) for shard, folder in self.folders.items()}
