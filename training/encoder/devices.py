"""Choice of the device on which models run."""


def best_device() -> str:
    """Return the default torch device: 'cuda' if available, else 'mps' if available, else 'cpu'."""
    import torch  # here, so that settings and command lines can be read without it

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def require_device(device: str | None) -> None:
    """Raise `ValueError` for a CUDA or MPS device if torch has none here.

    The number in "cuda:1" and other types of devices are not checked; None leaves the choice to `best_device`.
    """
    if device is None or device == "cpu":
        return
    import torch

    kind = device.partition(":")[0]
    missing = (kind == "cuda" and not torch.cuda.is_available()) or (
        kind == "mps" and not torch.backends.mps.is_available()
    )
    if missing:
        raise ValueError(f"the device {device} is not available to torch on this machine: set LATHE_DEVICE to another")
