"""The state of a training on disk, from which a killed fit is resumed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from transforms.files import replace_synced

WRITE_INTERVAL = 10.0
"""Seconds between two writes, which is what a kill costs at most."""

MAX_WRITING_SHARE = 0.1
"""Maximum share of the time spent on writing, for large states and slow disks."""


@dataclass(frozen=True)
class Checkpoint:
    """A file of tensors and the key of the fit it belongs to.

    Attributes:
        path: of the file, in an existing folder.
        key: identifies the fit; only a state with the same key is loaded. A fit sets its own.
        seconds: minimum time between two writes.
        share: maximum share of the time spent on writing.
    """

    path: Path
    key: str = ""
    seconds: float = WRITE_INTERVAL
    share: float = MAX_WRITING_SHARE

    @classmethod
    def at(cls, place: "CheckpointPath") -> "Checkpoint":
        """Return a path as a checkpoint with default settings, and a checkpoint as it is."""
        return place if isinstance(place, Checkpoint) else cls(Path(place))

    def in_folder(self, name: str) -> "Checkpoint":
        """Return the checkpoint of a file in the folder that this checkpoint names, with the same settings."""
        return replace(self, path=self.path / name)

    def pause_after(self, took: float) -> float:
        """Return the seconds to wait for the next write after one that took `took` seconds."""
        return max(self.seconds, took / self.share)

    def load(self) -> dict[str, Tensor] | None:
        """Return the tensors saved last; None if there are none, they are damaged, or belong to another fit."""
        try:
            with safe_open(self.path, "pt") as file:
                if (file.metadata() or {}).get("key") != self.key:
                    return None
                return {name: file.get_tensor(name) for name in file.keys()}
        except (OSError, SafetensorError):
            return None

    def save(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the saved tensors, completely or not at all.

        Raises:
            OSError: if the file cannot be written.
        """
        payload = save({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, {"key": self.key})
        replace_synced(self.path, payload)


CheckpointPath = str | PathLike[str] | Checkpoint
"""Where a state is saved: a path, or a checkpoint that also says how often it is written."""
