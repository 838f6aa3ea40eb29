"""Choice of the device on which models run."""


def best_device() -> str:
    """Return the default torch device: 'cuda' if available, else 'mps' if available, else 'cpu'."""
    import torch  # here, so that settings and command lines can be read without it

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def require_device(device: str | None) -> None:
    """Raise `ValueError` if a torch device is named that is not available here; None and 'cpu' always are."""
    if device is None or device == "cpu":
        return
    import torch

    kind = device.partition(":")[0]
    missing = (kind == "cuda" and not torch.cuda.is_available()) or (
        kind == "mps" and not torch.backends.mps.is_available()
    )
    if missing:
        raise ValueError(f"the device {device} is not available to torch on this machine: set LATHE_DEVICE to another")
