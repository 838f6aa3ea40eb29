"""The state of a fit on disk, from which a killed one goes on."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from transforms.files import replace_synced

SECONDS = 10.0
"""Between two writes: what a kill costs at most."""

WRITING_SHARE = 0.1
"""Of the time, at most, that goes into writing a state that is large or to a disk that is slow."""


@dataclass(frozen=True)
class Checkpoint:
    """One file of tensors that says what it belongs to.

    Attributes:
        path: of the file; its folder must be there.
        key: what must be the same for the state to be taken up; a fit sets its own.
        seconds: from one write to the next, at least.
        share: of the time that writing may take, at most.
    """

    path: Path
    key: str = ""
    seconds: float = SECONDS
    share: float = WRITING_SHARE

    @classmethod
    def at(cls, place: "Place") -> "Checkpoint":
        """Return a place as a checkpoint."""
        return place if isinstance(place, Checkpoint) else cls(Path(place))

    def in_folder(self, name: str) -> "Checkpoint":
        """Return the checkpoint of a file in the folder that this one names, written as often."""
        return replace(self, path=self.path / name)

    def pause_after(self, took: float) -> float:
        """Return the seconds to wait after a write that took so many seconds."""
        return max(self.seconds, took / self.share)

    def load(self) -> dict[str, Tensor] | None:
        """The tensors kept last; None if there are none, they are damaged, or belong to another fit."""
        try:
            with safe_open(self.path, "pt") as file:
                if (file.metadata() or {}).get("key") != self.key:
                    return None
                return {name: file.get_tensor(name) for name in file.keys()}
        except (OSError, SafetensorError):
            return None

    def save(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace what was kept, whole or not at all.

        Raises:
            OSError: if it cannot be written.
        """
        payload = save({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, {"key": self.key})
        replace_synced(self.path, payload)


Place = str | PathLike[str] | Checkpoint
"""Where a caller wants a state kept: a path, or a checkpoint that also says how often it is written."""
