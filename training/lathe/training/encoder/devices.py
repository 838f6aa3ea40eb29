"""Choice of the device on which models run."""


def best_device() -> str:
    """Return the default torch device: CUDA if available, else MPS, else the CPU."""
    import torch  # here, so that settings and command lines can be read without it

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def require_device(device: str | None) -> None:
    """Check that torch finds a CUDA or MPS device on this machine. The CPU, other kinds of devices and None always
    pass.

    Raises:
        ValueError: if the device is not available.
    """
    if device is None or device == "cpu":
        return

    import torch

    kind, _, index = device.partition(":")
    count = {"cuda": torch.cuda.device_count, "mps": torch.mps.device_count}.get(kind)
    if count is not None and count() <= (int(index) if index.isdecimal() else 0):
        raise ValueError(f"the device {device} is not available to torch on this machine: set LATHE_DEVICE to another")
