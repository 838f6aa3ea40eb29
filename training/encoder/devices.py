"""Choice of the device on which models run."""


def best_device() -> str:
    """Return the default torch device: 'cuda' if available, else 'mps' if available, else 'cpu'."""
    import torch  # here, so that settings and command lines can be read without it

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
