"""Checkpoints: training states saved on disk, from which a killed fit is resumed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from lathe.transforms.files import replace_synced

WRITE_INTERVAL = 10.0
"""Default minimum number of seconds between two writes of a checkpoint, and so the work that a kill can lose."""

MAX_WRITING_SHARE = 0.1
"""Default maximum fraction of the training time spent on writing checkpoints; lengthens the pauses on slow disks."""


@dataclass(frozen=True)
class Checkpoint:
    """The file of a training state (named tensors), the key of the fit that wrote it, and how often it is written.

    Attributes:
        path: path of the file; its folder must exist.
        key: identifies the fit: `load` ignores a file with another key. Each fit sets its own.
        seconds: minimum number of seconds between two writes.
        share: maximum fraction of the training time spent on writing.
    """

    path: Path
    key: str = ""
    seconds: float = WRITE_INTERVAL
    share: float = MAX_WRITING_SHARE

    @classmethod
    def at(cls, place: "CheckpointPath") -> "Checkpoint":
        """Return `place` if it is a `Checkpoint`, else a checkpoint at that path with default settings."""
        return place if isinstance(place, Checkpoint) else cls(Path(place))

    def in_folder(self, name: str) -> "Checkpoint":
        """Return a copy whose path is `path / name`, with `path` taken as a folder.

        The other settings stay the same.
        """
        return replace(self, path=self.path / name)

    def pause_after(self, took: float) -> float:
        """Return how many seconds to wait before the next write.

        They are `took / share`, but at least `seconds`.

        Args:
            took: how many seconds the last write took.
        """
        return max(self.seconds, took / self.share)

    def load(self) -> dict[str, Tensor] | None:
        """Read the tensors of the checkpoint's file by name. The result is None if the file is missing, unreadable, or
        has another key.
        """
        try:
            with safe_open(self.path, "pt") as file:
                if (file.metadata() or {}).get("key") != self.key:
                    return None
                return {name: file.get_tensor(name) for name in file.keys()}
        # A file that cannot be read costs only the work it held: the fit starts over, as without a checkpoint.
        except (OSError, SafetensorError):
            return None

    def save(self, tensors: Mapping[str, Tensor]) -> None:
        """Write the tensors and the key to the file, atomically replacing what was saved before.

        Raises:
            OSError: if the file cannot be written.
        """
        # safetensors rejects tensors that are not contiguous.
        payload = save({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, {"key": self.key})
        replace_synced(self.path, payload)


CheckpointPath = str | PathLike[str] | Checkpoint
"""Where to save a training state: a path, or a `Checkpoint` that also sets how often the state is written."""
