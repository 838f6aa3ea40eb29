"""The state of a fit on disk, from which a killed one goes on."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from transforms.artifact import replace_synced


@dataclass(frozen=True)
class Checkpoint:
    """One file of tensors that says what it belongs to.

    Attributes:
        path: of the file; its folder must be there.
        key: what must be the same for the state to be taken up.
    """

    path: Path
    key: str

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
