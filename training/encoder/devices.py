"""What models run on."""


def best_device() -> str:
    """Return the device that is taken where none is named."""
    import torch  # here, so that settings and command lines can be read without it

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
